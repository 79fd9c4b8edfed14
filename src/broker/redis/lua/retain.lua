-- Forgets results, with the tasks that they tell of, and dead letters that are not to be kept any longer.
--
-- ARGV[3] cursor: '' or what the last call answered  ARGV[4] most entries to look at
-- RETURNS {results removed, dead letters removed, cursor,
--   ms until there may be more to remove (0 to go on at once), or '' when time alone brings nothing,
--   consumer group that holds back what would go, or ''}
--
-- Which entries. A result goes when its time is over (failed ones have a time of their own, cancelled ones that of the
-- succeeded), or when there are more entries than the policy keeps, or when they take more memory than it gives them:
-- then the oldest go first. A dead letter goes when its time is over. Never goes what a consumer group of the stream has
-- not acknowledged, neither pending nor yet to be delivered: the stream is somebody's inbox. Never goes what somebody
-- else wrote to an adopted stream, and it does not count towards the bounds.
--
-- With a result goes all that is known of its task: `done`, the key in `idem` if it still stands for this task, the
-- alias of a raw producer, a left-over `x`. The entry itself goes last, so that an error in the middle is made good by
-- the next walk. The first write is an HDEL or XDEL: a full Redis gets room.
--
-- The walk. A round goes through the dead letters, then through the results, each from its oldest entry on, and ends
-- at the first that is too young for every rule: entries stand in the order of their time, so none behind it can go
-- either. (An entry for a raw producer's other id carries the time of the first one, earlier than its place says: it
-- goes when the walk passes it.) What stays is passed over and holds up nothing behind it: a failed task that is kept
-- longer, or what is pending in a group. So that it is not looked at again in every round, the next round goes on
-- where this one ended, and begins at the beginning only when one of those passed may go: the time of the first of
-- them has come, one was pending, the policy has changed, or a bound is exceeded. A call looks at no more entries than
-- it was told (and at no more than a mebibyte or so of them), so every call is short and every round ends. The cursor
-- is the caller's: two leaders walk apart and remove each entry once, because each call is atomic; one that lost its
-- cursor begins again.
--
-- Memory is measured at the beginning of a round only, by a sample, and becomes a number of entries for that round.
--
-- The cursor's words: phase ('dead', 'results', 'rest'), last dead letter and last result looked at, last of those at
-- the beginning that are somebody else's, 'over' if the round removes what is above a bound, how many entries fit
-- into the memory, when one of those passed may go, when the next dead letter may go, and the times of the policy
-- that all of them were judged by, or 'changed'.
local NEVER = 9e15
local retention = call('HGET', KEYS[1], 'retention')
if not retention then
  return { 0, 0, '', '', '' } -- a policy from before there was retention
end
local succeeded, failed, most_entries, most_mebibytes = unpack(cmsgpack.unpack(retention))
local shortest = math.min(succeeded, failed)
local times = string.format('%.0f/%.0f', succeeded, failed)
local budget, room, held_by = tonumber(ARGV[4]), 1048576, ''

local words = {}
for word in string.gmatch(ARGV[3] == '' and 'rest - - - - 0 0 0 none' or ARGV[3], '%S+') do
  words[#words + 1] = word
end
local phase, letter_at, result_at, base, over = words[1], words[2], words[3], words[4], words[5] == 'over'
local fits, due, letter_due, round_times = tonumber(words[6]), tonumber(words[7]), tonumber(words[8]), words[9]

-- Walks a stream behind `after`, while there is budget. `judge` is given an entry, the group that has not read it or
-- that has it pending, and the entry before it; it says whether to go on. Returns the last entry that was passed, and
-- whether the walk is at its end.
local function walk(key, after, judge)
  if budget < 1 then
    return after, false
  elseif call('EXISTS', key) == 0 then
    return after, true
  end
  local busy, read_up_to, reader = {}, nil, nil
  for _, info in ipairs(call('XINFO', 'GROUPS', key)) do
    local c = {}
    for i = 1, #info, 2 do
      c[info[i]] = info[i + 1]
    end
    if c.pending > 0 then
      busy[#busy + 1] = c.name
    end
    if not read_up_to or is_earlier(c['last-delivered-id'], read_up_to) then
      read_up_to, reader = c['last-delivered-id'], c.name
    end
  end
  local size = 4
  while budget > 0 and room > 0 do
    local entries = call('XRANGE', key, after == '-' and '-' or '(' .. after, '+', 'COUNT', math.min(size, budget))
    if #entries == 0 then
      return after, true
    end
    -- What is pending among them. Of entries that were deleted under their readers there may be many
    -- more: behind the last that was told, the next look tells.
    local pending, told = {}, nil
    for _, name in ipairs(busy) do
      local rows = call('XPENDING', key, name, entries[1][1], entries[#entries][1], 100)
      for _, row in ipairs(rows) do
        pending[row[1]] = name
      end
      if #rows == 100 and (not told or is_earlier(rows[100][1], told)) then
        told = rows[100][1]
      end
    end
    local bytes = 0
    for _, entry in ipairs(entries) do
      local message, f = entry[1], {}
      if told and is_earlier(told, message) then
        break
      end
      for i = 1, #entry[2], 2 do
        f[entry[2][i]] = entry[2][i + 1]
        bytes = bytes + #entry[2][i + 1]
      end
      budget = budget - 1
      local unread = read_up_to and is_earlier(read_up_to, message)
      if not judge(message, f, unread and reader, pending[message], after) or unread then
        return after, true -- nothing behind it can go
      end
      after = message
    end
    room = room - bytes
    size = math.max(1, math.min(25, math.floor(room * #entries / (bytes + 1))))
  end
  return after, false
end

-- The token of an entry that we wrote.
local function token_of(f)
  local ok, t = pcall(cjson.decode, f.token or '')
  return ok and type(t) == 'table' and f.task_id and #t == 15 and t or nil
end

local function remove(key, messages)
  if #messages > 0 then
    call('XDEL', key, unpack(messages))
  end
end

-- Those of these fields of a hash that have these values.
local function remove_equal(key, fields, values)
  if #fields > 0 then
    local found, equal = call('HMGET', P .. key, unpack(fields)), {}
    for i = 1, #fields do
      if found[i] == values[i] then
        equal[#equal + 1] = fields[i]
      end
    end
    if #equal > 0 then
      call('HDEL', P .. key, unpack(equal))
    end
  end
end

if phase == 'rest' then
  phase, letter_at, letter_due, over = 'dead', '-', NEVER, false
  if due <= now or round_times ~= times then
    result_at, due, round_times = base, NEVER, times
  end
  -- A server may not let us ask: then the number of entries is the only bound.
  local bytes, length = redis.pcall('MEMORY', 'USAGE', KEYS[3], 'SAMPLES', 5), call('XLEN', KEYS[3])
  fits = type(bytes) == 'number' and math.floor(most_mebibytes * 1048576 / bytes * length) or NEVER
end

local letters = {}
if phase == 'dead' then
  local dead, ids, requests = {}, {}, {}
  local at, ended = walk(KEYS[4], letter_at, function(message, f, reader, holder)
    local recorded = token_of(f) and tonumber(f.recorded_at or f.failed_at)
    if not recorded then
      return true
    elseif recorded + failed > now then
      letter_due = recorded + failed
      return false
    elseif reader or holder then
      held_by = reader or holder
    else
      letters[#letters + 1], dead[#dead + 1] = message, f.task_id
    end
    return true
  end)
  if #letters > 0 then
    local open, decided = call('HMGET', P .. 'dead', unpack(dead)), call('HMGET', P .. 'reviewed', unpack(dead))
    for i, id in ipairs(dead) do
      if open[i] == letters[i] then
        requests[#requests + 1] = id
      elseif decided[i] and cmsgpack.unpack(decided[i])[4] == letters[i] then
        ids[#ids + 1] = id
      end
    end
    if #requests > 0 then
      call('HDEL', P .. 'discards', unpack(requests))
      call('HDEL', P .. 'dead', unpack(requests))
    end
    if #ids > 0 then
      call('HDEL', P .. 'reviewed', unpack(ids))
    end
    remove(KEYS[4], letters)
    count('dead_letters_removed', #letters)
  end
  letter_at = at
  if ended then
    phase = 'results'
  end
end

local results, next_due = {}, NEVER
if phase == 'results' then
  -- How many are ours: all of them, or at most so many on a stream that others write to.
  local ours = call('XLEN', KEYS[3])
  if KEYS[3] ~= P .. 'result' then
    ours = math.min(ours, call('HLEN', P .. 'done') + call('HLEN', P .. 'alias'))
  end
  local excess = ours - math.min(most_entries, fits)
  if excess > 0 and not over then
    over, result_at, due = true, base, NEVER
  end
  local ids, messages, keys, key_ids, extras, aliases, firsts = {}, {}, {}, {}, {}, {}, {}
  local at, ended = walk(KEYS[3], result_at, function(message, f, reader, holder, before)
    local t, finished = token_of(f), tonumber(f.finished_at)
    if not t or not finished then
      if before == base then
        base = message
      end
      return true
    end
    local expires = finished + (f.status == 'failed' and failed or succeeded)
    if excess <= 0 and expires > now then
      if finished + shortest > now then
        next_due = finished + shortest
        return false
      end
      due = math.min(due, expires)
    elseif reader then
      held_by = reader
    elseif holder then
      held_by, due = holder, 0
    else
      excess = excess - 1
      results[#results + 1] = message
      if f.duplicate_of then
        aliases[#aliases + 1], firsts[#firsts + 1] = f.task_id, f.duplicate_of
      else
        ids[#ids + 1], messages[#messages + 1] = f.task_id, { message, t }
      end
    end
    return true
  end)
  if #results > 0 then
    local done, gone = #ids > 0 and call('HMGET', P .. 'done', unpack(ids)) or {}, {}
    for i, id in ipairs(ids) do
      -- Unless the id is used again meanwhile.
      if done[i] and string.sub(done[i], 2) == messages[i][1] then
        local t = messages[i][2]
        gone[#gone + 1], extras[#extras + 1] = id, P .. 'x:' .. id
        if t[12] ~= '' then
          keys[#keys + 1], key_ids[#key_ids + 1] = t[13] .. '\0' .. t[12], id
        end
      end
    end
    remove_equal('idem', keys, key_ids)
    remove_equal('alias', aliases, firsts)
    if #gone > 0 then
      call('HDEL', P .. 'done', unpack(gone))
      call('DEL', unpack(extras))
    end
    remove(KEYS[3], results)
    count('results_removed', #results)
  end
  result_at = at
  if ended then
    phase = 'rest'
  end
end

local wait = '0'
if phase == 'rest' then
  local first = math.min(next_due, letter_due, due > now and due or NEVER)
  -- A dead letter's time may have come since this round passed it.
  wait = first < NEVER and string.format('%.0f', math.max(0, first - now)) or ''
end
local cursor = table.concat({
  phase, letter_at, result_at, base, over and 'over' or '-', string.format('%.0f', fits), string.format('%.0f', due),
  string.format('%.0f', letter_due), round_times == times and times or 'changed',
}, ' ')
return { #results, #letters, cursor, wait, held_by }
