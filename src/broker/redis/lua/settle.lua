-- Ends attempts and claims the next tasks.
--
-- ARGV[3] worker  ARGV[4] class  ARGV[5] its types, comma-separated  ARGV[6] how many to claim
-- ARGV[7] '' or 'recover'  ARGV[8] number of ids held, which follow
-- then the number of settlements, and for each 8 values:
--   id, token, outcome letter (s success, f failure, p permanent, l rate limited, r released),
--   result or error, error code, dice, wait in ms or '', meta
-- RETURNS {a letter a settlement, due times of those that retry, mode, claimed as in claim, error of the claim or ''}
--   letters: s succeeded, T retrying, P dead, A already settled, L lease lost,
--   c cancelled, I invalid transition, N unknown, B result too large
--
-- Everything is judged before the first write, which is a DEL: a full Redis can always drain.
local holds = tonumber(ARGV[8])
local held
if ARGV[7] == 'recover' then
  held = {}
  for i = 9, 8 + holds do
    held[ARGV[i]] = true
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
    local same = t[2] == mine[2] and outcome ~= 's' and (t[11] == REASON[outcome] or
      (t[1] == 'P' and t[11] == 'permanent'))
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

local answers, acks, plan, seen = {}, {}, {}, {}
if n > 0 then
  local ids = {}
  for i = 1, n do
    ids[i] = ARGV[first + (i - 1) * 8]
  end
  local tokens = call('HMGET', LIVE, unpack(ids))
  for i = 1, n do
    local at = first + (i - 1) * 8
    local id, token, outcome = ids[i], ARGV[at + 1], ARGV[at + 2]
    if seen[id] then
      answers[i] = 'A' -- stood in this call before
    elseif tokens[i] ~= token then
      answers[i] = judge(id, token, outcome)
    elseif outcome == 's' and #ARGV[at + 3] > result_bytes then
      answers[i] = 'B'
    else
      seen[id] = true
      local t = cmsgpack.unpack(token)
      local key = P .. 'lane:' .. lane_of(t)
      local step = { i = i, id = id, t = t, token = token, outcome = outcome, at = at }
      if outcome ~= 's' then
        local entry = call('XRANGE', key, t[10], t[10])[1]
        step.fields = entry and entry[2] or {}
      end
      plan[#plan + 1] = step
      acks[key] = acks[key] or {}
      table.insert(acks[key], t[10])
    end
  end
end
call('DEL', P .. 'none') -- allowed when memory is full, as all that follows then is
for key, messages in pairs(acks) do
  call('XACK', key, group, unpack(messages))
  call('XDEL', key, unpack(messages))
end

local dues, gone, extras, succeeded = {}, {}, {}, 0
for _, step in ipairs(plan) do
  local i, id, t, at, outcome = step.i, step.id, step.t, step.at, step.outcome
  local body, code = ARGV[at + 3], ARGV[at + 4]
  if outcome == 's' then
    finish(id, t, step.token, 's', 'succeeded', { 'result', body }, ARGV[at + 7])
    emit('s', id, 'R', step.token, '')
    gone[#gone + 1] = id
    extras[#extras + 1] = P .. 'x:' .. id
    succeeded = succeeded + 1
    answers[i] = 's'
  else
    local payload, meta = step.fields[4], step.fields[6]
    local dead, due = false, now
    if not payload then
      payload, meta, dead, code, body = 'null', ARGV[at + 7], true, 'entry_missing', 'its entry was deleted under it: ' .. body
    elseif outcome == 'p' then
      dead = true
    elseif outcome == 'f' then
      t[3] = t[3] + 1
      local limit = t[15] >= 0 and t[15] or tonumber(policy('max_retries'))
      dead = t[3] > limit
      if not dead then
        due = now + wait_ms('retry', t[3], tonumber(ARGV[at + 5]))
      end
    else
      t[5] = t[5] + 1
      if t[5] > tonumber(policy('max_releases')) then
        dead = true
        body = 'was released or rate limited ' .. t[5] .. ' times' .. (body ~= '' and ': ' .. body or '')
        code = 'too_many_releases'
      elseif ARGV[at + 6] ~= '' then
        due = now + tonumber(ARGV[at + 6])
      elseif outcome == 'l' then
        due = now + wait_ms('rate_limit', t[5], tonumber(ARGV[at + 5]))
      end
    end
    if not dead and due > t[6] + deadline then
      dead = true
      body, code = 'its next attempt would come after its deadline' .. (body ~= '' and ': ' .. body or ''), 'deadline_exceeded'
    end
    if dead then
      die(id, t, payload, meta, outcome == 'p' and 'permanent' or REASON[outcome], code, body)
      answers[i] = 'P'
    else
      if outcome ~= 'r' then
        remember(id, t, REASON[outcome], code, body)
      end
      run_again(id, t, payload, meta, REASON[outcome], due)
      dues[#dues + 1] = due
      answers[i] = 'T'
    end
    count('attempts_' .. (REASON[outcome] or 'permanent'), 1)
  end
end
if #gone > 0 then
  call('HDEL', LIVE, unpack(gone))
  call('DEL', unpack(extras))
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
