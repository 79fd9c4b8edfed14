-- Module: settlements that are no plain success.

-- Which retry reason an outcome leaves behind, to recognise it when it is repeated.
local REASON = { f = 'failure', l = 'rate_limited', r = 'released' }

-- The lease does not match: says why, from what became of the task.
local function judge(id, token, outcome)
  local mine, current = unpack_token(token), call('HGET', LIVE, id)
  if current then
    local t = unpack_token(current)
    local same = t[2] == mine[2] and outcome ~= 's' and (t[4] == REASON[outcome] or
      (t[1] == 'P' and t[4] == 'permanent'))
    return same and 'A' or 'L'
  end
  local finished = call('HGET', P .. 'done', id)
  if not finished then
    return 'N'
  end
  local letter = sub(finished, 1, 1)
  if letter == 'c' then
    return 'c'
  end
  local message = sub(finished, 2)
  local entry = call('XRANGE', KEYS[3], message, message)[1]
  local epoch = 0
  if entry then
    for i = 1, #entry[2], 2 do
      if entry[2][i] == 'token' then
        epoch = unpack_token(entry[2][i + 1])[2]
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

-- Anything but a success; returns the answer's letter and, for a retry, when it is due.
local function fail(id, token, outcome, body, meta, special, entry)
  local t, option = unpack_token(token), cmsgpack.unpack(special)
  local code, dice, wait = option[1], option[2], option[3]
  local payload, dead, due = entry and entry[2][2], false, now
  if not payload then
    payload, dead, code, body = 'null', true, 'entry_missing', 'its entry was deleted under it: ' .. body
  else
    meta = entry[2][4] or ''
  end
  if outcome == 'p' then
    dead = true
  elseif outcome == 'f' then
    t[7] = t[7] + 1
    dead = dead or t[7] > (t[15] >= 0 and t[15] or tonumber(call('HGET', KEYS[1], 'max_retries')))
    due = now + moves().wait_ms('retry', t[7], dice)
  else
    t[9] = t[9] + 1
    if t[9] > tonumber(call('HGET', KEYS[1], 'max_releases')) then
      dead, code = true, 'too_many_releases'
      body = 'was released or rate limited ' .. t[9] .. ' times' .. (body ~= '' and ': ' .. body or '')
    elseif wait ~= '' then
      due = now + tonumber(wait)
    elseif outcome == 'l' then
      due = now + moves().wait_ms('rate_limit', t[9], dice)
    end
  end
  if not dead and due > t[6] + deadline then
    dead, code = true, 'deadline_exceeded'
    body = 'its next attempt would come after its deadline' .. (body ~= '' and ': ' .. body or '')
  end
  count('attempts_' .. (REASON[outcome] or 'permanent'), 1)
  if dead then
    moves().die(id, t, payload, meta, REASON[outcome] or 'permanent', code, body)
    return 'P'
  end
  if outcome ~= 'r' then
    moves().remember(id, t, REASON[outcome], code, body)
  end
  moves().run_again(id, t, payload, meta, REASON[outcome], due)
  return 'T', due
end

return { judge = judge, fail = fail }
