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
local result_bytes = n > 0 and tonumber(policy('result_bytes'))

-- Which retry reason an outcome leaves behind, to recognise it when it is repeated.
local REASON = { f = 'failure', l = 'rate_limited', r = 'released' }

-- The lease does not match: says why, from what became of the task.
local function judge(id, token, outcome)
  local mine, current = cmsgpack.unpack(token), call('HGET', LIVE, id)
  if current then
    local t = cmsgpack.unpack(current)
    local same = t[2] == mine[2] and outcome ~= 's' and (t[15] == REASON[outcome] or
      (t[1] == 'P' and t[15] == 'permanent'))
    return same and 'A' or 'L'
  end
  local finished = call('HGET', P .. 'done', id)
  if not finished then
    return 'N'
  end
  local letter = string.sub(finished, 1, 1)
  if letter == 'c' then
    return 'c'
  end
  local message = string.sub(finished, 2)
  local entry = call('XRANGE', KEYS[3], message, message)[1]
  local epoch = 0
  if entry then
    for i = 1, #entry[2], 2 do
      if entry[2][i] == 'token' then
        epoch = cmsgpack.unpack(entry[2][i + 1])[2]
      end
    end
  end
  if epoch > mine[2] then
    return 'L'
  elseif epoch == mine[2] and (letter == 's') == (outcome == 's') then
    return 'A'
  end
  return 'I'
end

local answers, acks, seen, entries, packed_worker = {}, {}, {}, {}, packed(ARGV[3])
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
      answers[i] = judge(id, token, outcome)
    elseif outcome == 's' and #ARGV[at + 3] > result_bytes then
      answers[i] = 'B'
    else
      seen[id] = true
      local message, traits, epoch, retries, has_extras = read_running(token, packed_worker)
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
      plan[plan_n], plan_traits[plan_n], plan_retries[plan_n], plan_extras[plan_n] = i, traits, retries, has_extras
      if outcome ~= 's' then
        entries[i] = call('XRANGE', P .. 'lane:' .. lane, message, message)[1]
      end
    end
  end
end
call('DEL', P .. 'none') -- allowed when memory is full, as all that follows then is

local dues, gone, done, extras, succeeded = {}, {}, {}, {}, 0
local aliased = plan_n > 0 and call('EXISTS', P .. 'aliases') == 1

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
  release_key(id, 's', traits[3], traits[4])
  if aliased then
    answer_aliases(id, message)
  end
  emit('sR', id, token)
end

-- Anything but a success; returns the answer's letter.
local function fail(id, token, outcome, body, meta, special, entry)
  local t, option = unpack_token(token), unpack_token(special)
  local code, dice, wait = option[1], option[2], option[3]
  local payload, dead, due = entry and entry[2][4], false, now
  if not payload then
    payload, dead, code, body = 'null', true, 'entry_missing', 'its entry was deleted under it: ' .. body
  else
    meta = entry[2][6] or ''
  end
  if outcome == 'p' then
    dead = true
  elseif outcome == 'f' then
    t[3] = t[3] + 1
    dead = dead or t[3] > (t[14] >= 0 and t[14] or tonumber(policy('max_retries')))
    due = now + wait_ms('retry', t[3], dice)
  else
    t[5] = t[5] + 1
    if t[5] > tonumber(policy('max_releases')) then
      dead, code = true, 'too_many_releases'
      body = 'was released or rate limited ' .. t[5] .. ' times' .. (body ~= '' and ': ' .. body or '')
    elseif wait ~= '' then
      due = now + tonumber(wait)
    elseif outcome == 'l' then
      due = now + wait_ms('rate_limit', t[5], dice)
    end
  end
  if not dead and due > t[6] + deadline then
    dead, code = true, 'deadline_exceeded'
    body = 'its next attempt would come after its deadline' .. (body ~= '' and ': ' .. body or '')
  end
  count('attempts_' .. (REASON[outcome] or 'permanent'), 1)
  if dead then
    die(id, t, payload, meta, REASON[outcome] or 'permanent', code, body)
    return 'P'
  end
  if outcome ~= 'r' then
    remember(id, t, REASON[outcome], code, body)
  end
  run_again(id, t, payload, meta, REASON[outcome], due)
  dues[#dues + 1] = due
  return 'T'
end

for j = 1, plan_n do
  local i = plan[j]
  local at = first + (i - 1) * 6
  local id, token, outcome, body, meta = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  if outcome == 's' then
    succeed(id, token, body, meta, plan_traits[j], plan_retries[j], plan_extras[j])
    answers[i] = 's'
  else
    answers[i] = fail(id, token, outcome, body, meta, ARGV[at + 5], entries[i])
  end
end
if succeeded > 0 then
  call('HDEL', LIVE, unpack(gone))
  call('HSET', P .. 'done', unpack(done))
  if #extras > 0 then
    call('DEL', unpack(extras))
  end
end
-- Last of all: had anything before failed, the tasks would still be where they were.
for lane, messages in pairs(acks) do
  call('XACK', P .. 'lane:' .. lane, group, unpack(messages))
  call('XDEL', P .. 'lane:' .. lane, unpack(messages))
end
count('succeeded', succeeded)
local invalid = 0
for i = 1, n do
  if answers[i] == 'I' then
    invalid = invalid + 1
  end
end
count('invalid_transitions', invalid)
announce()

-- The settlements stand whatever becomes of the claim.
local ok, claimed = pcall(claim_some, ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6]), held)
local problem = ''
if not ok then
  problem, claimed = type(claimed) == 'table' and claimed.err or tostring(claimed), {}
end
flush_moves()
ring()
return { table.concat(answers), dues, mode, claimed, problem }
