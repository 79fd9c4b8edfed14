-- Checks that live tasks are where their state says, puts back what is not, and
-- then clears the lanes.
--
-- ARGV[3] cursor: of the walk through live tasks or, after an L, of that through lanes; then, where a silent worker's
--   lanes were not all seen, where to go on, its last heartbeat, and its name
-- ARGV[4] how many tasks at a time
-- ARGV[5] the server's run id
-- RETURNS {next cursor, checked, {id, what was wrong, …}, consumers removed, {lost workers},
--   1 if a silent worker still has tasks}
local LANES = 10 -- at a time
call('DEL', P .. 'none') -- the first write, allowed when memory is full
local walk, silent_from, silent_beat, silent_worker = string.match(ARGV[3], '^(%S+) (%d+) (%S+) (.+)$')
walk = walk or ARGV[3]
local lanes_from = string.match(walk, '^L(%d+)$')
local page = lanes_from and { '0', {} } or call('HSCAN', LIVE, walk, 'COUNT', ARGV[4])
local repaired, read_up_to = {}, {}

local function wrong(id, what)
  repaired[#repaired + 1], repaired[#repaired + 2] = id, what
end

-- A task that should be in a lane.
local function check_lane(id, t)
  local lane = lane_of(t)
  local key = P .. 'lane:' .. lane
  if call('SADD', P .. 'lanes', lane) == 1 then
    if string.sub(lane, -1) == '+' then
      call('SADD', P .. 'lanes+', lane)
    end
    wrong(id, 'its lane ' .. lane .. ' was not in the list of lanes')
  end
  local entry = call('XRANGE', key, t[5], t[5])[1]
  if not entry then
    wrong(id, 'its entry is gone from lane ' .. lane)
    local message = t[5]
    moves().die(id, t, 'null', '', 'repaired', 'entry_missing', 'its entry was deleted from lane ' .. lane)
    redis.pcall('XACK', key, group, message)
    return
  end
  local pending = redis.pcall('XPENDING', key, group, t[5], t[5], 1)
  if pending.err then
    -- The next claim makes the group again.
    pending = {}
  end
  local owner = pending[1] and pending[1][2]
  if t[1] == 'R' then
    if owner ~= t[4] then
      wrong(id, 'it runs on ' .. t[4] .. ' and is pending for ' .. (owner or 'nobody'))
      moves().lose(id, t, key, entry, 'repaired', false)
    end
    return
  end
  read_up_to[key] = read_up_to[key] or last_read(key)
  if not is_earlier(read_up_to[key], t[5]) then
    wrong(id, 'it waits in lane ' .. lane .. ' behind where that was read')
    moves().clear(id, t, key, entry)
    return
  end
  local indexes = { READY }
  for _, class in ipairs(places().classes_of(t[10])) do
    indexes[#indexes + 1] = READY .. ':' .. class
  end
  for _, index in ipairs(indexes) do
    if not call('ZSCORE', index, lane) then
      wrong(id, 'its lane ' .. lane .. ' was not among the ready ones')
      touched[lane], repairing = { t[10], t[11] }, true
      return
    end
  end
end

-- A task that should be parked, and in a set that brings it back.
local function check_parked(id, t, set, score_of)
  if not call('ZSCORE', P .. set, id) then
    wrong(id, 'it is not in ' .. set)
    call('ZADD', P .. set, score_of, id)
  end
  if call('HEXISTS', PARKED, id) == 0 and t[1] ~= 'P' then
    wrong(id, 'its payload is gone')
    moves().die(id, t, 'null', '', 'repaired', 'entry_missing', 'its parked payload was deleted')
    call('ZREM', P .. set, id)
  end
end

for i = 1, #page[2], 2 do
  local id, t = page[2][i], cjson.decode(page[2][i + 1])
  if t[5] ~= '' and t[1] ~= 'P' then
    check_lane(id, t)
  elseif t[1] == 'S' then
    check_parked(id, t, 'delayed', now)
  elseif t[1] == 'T' then
    check_parked(id, t, 'retrying', now)
  elseif t[1] == 'P' then
    check_parked(id, t, 'dlq_pending', t[3])
  end
end

-- Workers that have been silent for too long.
local lost, unfinished, rest = {}, 0, ''
local clock_is_new, since = clock_of(ARGV[5])
if not clock_is_new then
  local silent = now - tonumber(call('HGET', KEYS[1], 'worker_lost'))
  local budget, lanes = 20, LANES_AT_ONCE
  local rows = call('ZRANGEBYSCORE', P .. 'heartbeats', '-inf', silent, 'WITHSCORES', 'LIMIT', 0, 5)
  for i = 1, #rows, 2 do
    if lanes <= 0 then
      unfinished = 1
      break
    end
    local worker, beat = rows[i], rows[i + 1]
    -- Who was last heard by the server before need not have crashed: nobody could be heard.
    local crash = tonumber(beat) >= since
    -- One that was heard meanwhile may have claimed in lanes that were seen.
    local from = worker == silent_worker and beat == silent_beat and silent_from or '0'
    local requeued, dead, left, seen, stays = evict(worker, 'worker_lost', crash, budget, '', from)
    budget, lanes = budget - #requeued - #dead, lanes - seen
    if left then
      unfinished = 1
      rest = rest == '' and ' ' .. left .. ' ' .. beat .. ' ' .. worker or rest
    elseif not stays then
      forget(worker)
      lost[#lost + 1] = worker
    end
  end
end

announce(SURE)

-- Consumers that no registered worker stands behind and that hold nothing.
local function clear_consumers(key)
  local consumers, removed = redis.pcall('XINFO', 'CONSUMERS', key, group), 0
  if not consumers.err then
    for _, info in ipairs(consumers) do
      local c = {}
      for j = 1, #info, 2 do
        c[info[j]] = info[j + 1]
      end
      if c.pending == 0 and tonumber(c.idle) > 60000 and call('HEXISTS', P .. 'workers', c.name) == 0 then
        call('XGROUP', 'DELCONSUMER', key, group, c.name)
        removed = removed + 1
      end
    end
  end
  return removed
end

-- What was read and is neither pending nor where a live task is has ended: its settlement was cut off before it could
-- delete it (its user had no right to). It would count as waiting for ever.
local function drop_leftovers(key)
  local pending = redis.pcall('XPENDING', key, group, '-', '+', 1)
  if pending.err then
    return
  end
  local last = pending[1] and '(' .. pending[1][1] or last_read(key)
  for _, entry in ipairs(call('XRANGE', key, '-', last, 'COUNT', LANES)) do
    local token = call('HGET', LIVE, entry[2][1])
    if not token or cjson.decode(token)[5] ~= entry[1] then
      call('XDEL', key, entry[1])
    end
  end
end

-- A lane that holds nothing goes: there is a bound to how many there may be.
-- The next task of its kind makes it again.
local function is_idle(lane, key)
  if redis.pcall('XLEN', key) ~= 0 or call('ZSCORE', READY, lane) then
    return false
  end
  local pending = redis.pcall('XPENDING', key, group)
  return pending.err or pending[1] == 0
end

local cursor, removed = page[1], 0
if cursor == '0' then
  local lanes = call('SSCAN', P .. 'lanes', lanes_from or '0', 'COUNT', LANES)
  for _, lane in ipairs(lanes[2]) do
    local key = P .. 'lane:' .. lane
    drop_leftovers(key)
    if is_idle(lane, key) then
      call('DEL', key)
      call('SREM', P .. 'lanes', lane)
      call('SREM', P .. 'lanes+', lane)
    else
      removed = removed + clear_consumers(key)
    end
  end
  cursor = lanes[1] == '0' and '0' or 'L' .. lanes[1]
end
flush_moves()
ring()
return { cursor .. rest, #page[2] / 2, repaired, removed, lost, unfinished }
