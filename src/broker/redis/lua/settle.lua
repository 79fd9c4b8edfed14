-- Ends attempts and claims the next tasks.
--
-- ARGV[3] worker  ARGV[4] class  ARGV[5] its types, comma-separated  ARGV[6] how many to claim
-- ARGV[7] '' or 'recover'  ARGV[8] number of leases held, which follow: id, epoch
-- then the number of settlements, and for each 6 values:
--   id, token, outcome letter (s success, f failure, p permanent, l rate limited, r released),
--   result or error, meta, and '' or, packed, {error code, dice, wait in ms or ''}
-- RETURNS {a letter a settlement, due times of those that retry, mode, claimed as in claim, error of the claim or ''}
--   letters: s succeeded, T retrying, P dead, A already settled, L lease lost,
--   c cancelled, I invalid transition, N unknown, B result too large
--
-- Everything is judged before the first write, which is a DEL: a full Redis can always drain.
local holds = 2 * tonumber(ARGV[8])
local held
if ARGV[7] == 'recover' then
  held = {}
  for i = 9, 8 + holds, 2 do
    held[ARGV[i]] = tonumber(ARGV[i + 1])
  end
end
local first = 10 + holds
local n = tonumber(ARGV[first - 1])
local result_bytes = head[7]

-- What finishing a task needs of a running one's token:
-- message, traits (type, priority, key, tenant, …), epoch, retries.
-- Traits that stand last in one token often stand last in the next as well.
local last_words, last_traits = '', nil
local function read_running(token, holder)
  if byte(token, 7) == 44 and find(token, holder, 21, true) == 21 then
    local at = 21 + #holder
    local quote = find(token, '"', at, true)
    -- Created takes thirteen digits; then come the counters.
    if find(token, ',0,0,0,', quote + 15, true) == quote + 15 then
      local rest = quote + 22
      if not last_traits or #token ~= rest + #last_words - 1 or find(token, last_words, rest, true) ~= rest then
        last_words = sub(token, rest)
        last_traits = unpack_token('[' .. last_words)
      end
      return sub(token, at, quote - 1), last_traits, byte(token, 6) - 48, 0
    end
  end
  local t = unpack_token(token)
  return t[5], { t[10], t[11], t[12], t[13], t[14], t[15] }, t[2], t[7]
end

local answers, acks, seen, entries, holder = {}, {}, {}, {}, ',' .. pack(ARGV[3]) .. ',"'
local plan, plan_traits, plan_retries, plan_extras, plan_n = {}, {}, {}, {}, 0
if n > 0 then
  local ids = {}
  for i = 1, n do
    ids[i] = ARGV[first + (i - 1) * 6]
  end
  local tokens = call('HMGET', LIVE, unpack(ids))
  for i = 1, n do
    local at = first + (i - 1) * 6
    local id, token, outcome = ids[i], ARGV[at + 1], ARGV[at + 2]
    if seen[id] then
      answers[i] = 'A' -- stood in this call before
    elseif tokens[i] ~= token then
      answers[i] = failing().judge(id, token, outcome)
    elseif outcome == 's' and #ARGV[at + 3] > result_bytes then
      answers[i] = 'B'
    else
      seen[id] = true
      local message, traits, epoch, retries = read_running(token, holder)
      local lane = first_lane(traits[1], traits[2])
      if epoch > 1 then
        lane = lane .. '+'
      end
      local messages = acks[lane]
      if not messages then
        messages = {}
        acks[lane] = messages
      end
      messages[#messages + 1] = message
      plan_n = plan_n + 1
      -- A task that ran before may have left errors and a history.
      plan[plan_n], plan_traits[plan_n], plan_retries[plan_n], plan_extras[plan_n] = i, traits, retries, epoch > 1
      if outcome ~= 's' then
        entries[i] = call('XRANGE', P .. 'lane:' .. lane, message, message)[1]
      end
    end
  end
end
call('DEL', P .. 'none') -- allowed when memory is full, as all that follows then is

local dues, gone, done, extras, succeeded = {}, {}, {}, {}, 0

local function succeed(id, token, body, meta, traits, retries, has_extras)
  local message
  retries = retries == 0 and '0' or retries
  if meta == '' then
    message = call('XADD', KEYS[3], '*', 'task_id', id, 'tool_name', traits[1], 'status', 'succeeded', 'result', body,
      'retry_count', retries, 'finished_at', now_text, 'token', token)
  else
    message = call('XADD', KEYS[3], '*', 'task_id', id, 'tool_name', traits[1], 'status', 'succeeded', 'result', body,
      'retry_count', retries, 'finished_at', now_text, 'token', token, 'meta', meta)
  end
  succeeded = succeeded + 1
  gone[succeeded] = id
  done[succeeded * 2 - 1], done[succeeded * 2] = id, 's' .. message
  if has_extras then
    extras[#extras + 1] = P .. 'x:' .. id
  end
  if traits[3] ~= '' then
    moves().release_key(id, 's', traits[3], traits[4])
  end
  if not ordinary then
    moves().answer_aliases(id, message)
  end
  emit('sR', id, token)
end

for j = 1, plan_n do
  local i = plan[j]
  local at = first + (i - 1) * 6
  local id, token, outcome, body, meta = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  if outcome == 's' then
    succeed(id, token, body, meta, plan_traits[j], plan_retries[j], plan_extras[j])
    answers[i] = 's'
  else
    local due
    answers[i], due = failing().fail(id, token, outcome, body, meta, ARGV[at + 5], entries[i])
    dues[#dues + 1] = due
  end
end
if succeeded > 0 then
  call('HDEL', LIVE, unpack(gone))
  call('HSET', P .. 'done', unpack(done))
  if not ordinary then
    call('HDEL', P .. 'progress', unpack(gone))
  end
  if #extras > 0 then
    call('DEL', unpack(extras))
  end
end
-- Last of all: had anything before failed, the tasks would still be where they were.
-- What was read and is done stands in a lane no more. So once these messages are
-- acknowledged, nothing but them stands before the first pending entry, and a
-- cut there is the same as an XDEL of each, which has to look for each. Where
-- nothing is pending, all that was read is done. That holds only if all of them
-- were pending: a group that was made again has yet to read what is leased.
for lane, messages in pairs(acks) do
  local key, gone_n = P .. 'lane:' .. lane, 0
  local acked = call('XACK', key, group, unpack(messages))
  if acked == #messages and acked > 3 then
    local pending = call('XPENDING', key, group, '-', '+', 1)[1]
    local ms, seq = string.match(messages[#messages], '^(%d+)-(%d+)$')
    local cut = redis.pcall('XTRIM', key, 'MINID', pending and pending[1] or ms .. '-' .. string.format('%.0f', seq + 1))
    gone_n = type(cut) == 'number' and cut or 0
  end
  if gone_n < #messages then
    call('XDEL', key, unpack(messages))
  end
end
count('succeeded', succeeded)
local invalid = 0
for i = 1, n do
  if answers[i] == 'I' then
    invalid = invalid + 1
  end
end
count('invalid_transitions', invalid)
announce(MAYBE)

-- The settlements stand whatever becomes of the claim.
local ok, claimed = pcall(claim_some, ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6]), held)
local problem = ''
if not ok then
  problem, claimed = type(claimed) == 'table' and claimed.err or tostring(claimed), {}
end
flush_moves()
ring()
return { table.concat(answers), dues, mode, claimed, problem }
