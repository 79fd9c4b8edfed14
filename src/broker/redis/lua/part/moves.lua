-- Module: moves that several operations make, each from a token that was checked.

local function idem_field(tenant, key)
  return tenant .. '\0' .. key
end

-- The beginning of a text, cut between characters.
local function beginning(text, longest)
  if #text <= longest then
    return text
  end
  while longest > 0 and byte(text, longest + 1) >= 128 and byte(text, longest + 1) < 192 do
    longest = longest - 1
  end
  return sub(text, 1, longest)
end

-- Remembers how an attempt ended; the last 20 are kept.
local function remember(id, t, outcome, code, err)
  local x = P .. 'x:' .. id
  local worker = t[1] == 'R' and t[4] or ''
  local kept = call('HGET', x, 'history')
  local history = kept and unpack_token(kept) or {}
  history[#history + 1] = { t[2], now, outcome, code, beginning(err, 256), worker }
  if #history > 20 then
    table.remove(history, 1)
  end
  call('HSET', x, 'error', err, 'code', code, 'history', pack(history))
  if worker ~= '' then
    call('HSET', x, 'worker', worker)
  end
end

-- To dlq_pending. The caller then takes the task out of where it was.
local function die(id, t, payload, meta, outcome, code, err)
  local from, worker = t[1], t[1] == 'R' and t[4] or ''
  remember(id, t, outcome, code, err)
  t[1], t[3], t[5], t[4] = 'P', now, '', outcome
  local token = pack(t)
  call('HSET', PARKED, id, cmsgpack.pack({ payload, meta }))
  call('ZADD', P .. 'dlq_pending', now, id)
  call('HSET', LIVE, id, token)
  emit('P' .. from, id, token, code, worker)
  count('dead', 1)
  redis.pcall('PUBLISH', 'windlass:notices', P .. 'dead')
end

-- To retrying. The caller has counted why, and then takes the task out of where it was.
local function run_again(id, t, payload, meta, reason, due)
  local from, worker = t[1], t[1] == 'R' and t[4] or ''
  t[1], t[3], t[4] = 'T', now, reason
  if due <= now then
    t[5] = push(lane_of(t), t[10], t[11], id, payload, meta)
  else
    t[5] = ''
    call('HSET', PARKED, id, cmsgpack.pack({ payload, meta }))
    call('ZADD', P .. 'retrying', due, id)
    if call('ZRANK', P .. 'retrying', id) == 0 then
      redis.pcall('PUBLISH', 'windlass:notices', P .. 'due')
    end
  end
  local token = pack(t)
  call('HSET', LIVE, id, token)
  emit('T' .. from, id, token, reason, worker)
end

-- Takes a running task from its worker; `entry` is its message, still pending.
local function take_from(id, t, entry, reason, crash, words)
  local worker = t[4]
  local told = words and words ~= '' and reason .. ' (' .. words .. ')' or reason
  local fields = entry[2]
  local payload, meta = fields[2], fields[4] or ''
  if reason == 'released' then
    t[9] = t[9] + 1
    if t[9] > tonumber(call('HGET', KEYS[1], 'max_releases')) then
      die(id, t, payload, meta, reason, 'too_many_releases', 'was released or rate limited ' .. t[9] .. ' times')
      return 'P'
    end
  elseif crash then
    t[8] = t[8] + 1
    if t[8] > tonumber(call('HGET', KEYS[1], 'max_crashes')) then
      die(id, t, payload, meta, reason, 'worker_lost', 'lost its worker ' .. t[8] .. ' times, last by ' .. told)
      return 'P'
    end
  end
  remember(id, t, reason, reason, 'was taken from its worker: ' .. told)
  call('HSET', P .. 'x:' .. id, 'from', worker, 'message', entry[1], 'words', words or '')
  run_again(id, t, payload, meta, reason, now)
  count('reclaimed', 1)
  return 'T'
end

-- A worker lost a task. Its old entry goes last: had anything before failed,
-- it would still be there.
local function lose(id, t, key, entry, reason, crash, words)
  local letter = take_from(id, t, entry, reason, crash, words)
  call('XACK', key, group, entry[1])
  call('XDEL', key, entry[1])
  return letter
end

-- A pending entry that is nobody's lease. A task that waits, and that a
-- stranger read, goes into its lane again.
local function clear(id, t, key, entry)
  if t and t[5] == entry[1] then
    t[5] = push(lane_of(t), t[10], t[11], id, entry[2][2], entry[2][4] or '')
    call('HSET', LIVE, id, pack(t))
  end
  call('XACK', key, group, entry[1])
  call('XDEL', key, entry[1])
end

-- Frees a finished task's key, as the scope says.
local function release_key(id, letter, key, tenant)
  if key ~= '' then
    local scope = call('HGET', KEYS[1], 'idempotency_scope')
    local field = idem_field(tenant, key)
    local keep = scope == 'Retained' or (scope == 'LiveAndSucceeded' and letter == 's')
    if not keep and call('HGET', P .. 'idem', field) == id then
      call('HDEL', P .. 'idem', field)
    end
  end
end

-- Raw producers that sent the same work under other ids wait for those.
local function answer_aliases(id, message)
  local aliases = call('HGET', P .. 'aliases', id)
  if aliases then
    call('HDEL', P .. 'aliases', id)
    local fields = call('XRANGE', KEYS[3], message, message)[1][2]
    for _, alias in ipairs(cmsgpack.unpack(aliases)) do
      fields[2] = alias
      call('XADD', KEYS[3], '*', 'duplicate_of', id, unpack(fields))
    end
  end
end

-- Ends a task without success: exactly one result, and its key released.
local function finish(id, t, token, letter, status, err, code, dlq_id, meta)
  local message = call('XADD', KEYS[3], '*', 'task_id', id, 'tool_name', t[10], 'status', status, 'error', err,
    'error_code', code, 'dlq_id', dlq_id, 'retry_count', t[7], 'finished_at', now_text, 'token', token, 'meta', meta)
  call('HSET', P .. 'done', id, letter .. message)
  call('HDEL', P .. 'progress', id)
  release_key(id, letter, t[12], t[13])
  answer_aliases(id, message)
end

-- The wait before a retry: the policy's table of waits, and its jitter with
-- the random part given.
local function wait_ms(kind, n, dice)
  local rows = call('HMGET', KEYS[1], kind .. '_delays', kind .. '_jitter')
  local base, i = 0, 0
  for word in string.gmatch(rows[1], '%d+') do
    base, i = tonumber(word), i + 1
    if i == n then break end
  end
  local jitter, by = string.sub(rows[2], 1, 1), tonumber(string.sub(rows[2], 2))
  local function up_to(top)
    return math.floor((top + 1) * dice / 65536)
  end
  if jitter == 'A' then
    return base + up_to(by)
  elseif jitter == 'P' then
    return base + up_to(math.floor(base * by / 100))
  elseif jitter == 'S' then
    local swing = math.floor(base * by / 100)
    return base - swing + up_to(2 * swing)
  end
  return base
end

-- What `task.reclaimed` says besides who claimed it.
local function reclaimed_detail(id, t)
  local reason = t[4]
  if reason == 'failure' or reason == 'released' or reason == 'rate_limited' then
    return nil
  end
  local row = call('HMGET', P .. 'x:' .. id, 'from', 'message', 'words')
  local detail = { reason = reason, from = row[1] or '', message = row[2] or '' }
  if row[3] and row[3] ~= '' then
    detail.words = row[3]
  end
  return cjson.encode(detail)
end

return {
  remember = remember, die = die, run_again = run_again, lose = lose, clear = clear, release_key = release_key,
  answer_aliases = answer_aliases, finish = finish, wait_ms = wait_ms, reclaimed_detail = reclaimed_detail,
}
