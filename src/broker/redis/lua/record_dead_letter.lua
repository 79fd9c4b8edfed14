-- Writes a dead letter, then fails the task: dlq_pending, dlq_recorded, failed.
--
-- ARGV[3] id  ARGV[4] epoch
-- RETURNS 'done', 'before' (recorded before), 'invalid' or 'unknown'
local id, epoch = ARGV[3], tonumber(ARGV[4])
call('DEL', P .. 'none') -- the first write, allowed when memory is full
local token = call('HGET', LIVE, id)
if not token then
  local finished = call('HGET', P .. 'done', id)
  if not finished then
    return 'unknown'
  elseif string.sub(finished, 1, 1) == 'f' then
    return 'before'
  end
  count('invalid_transitions', 1)
  return 'invalid'
end
local t = cjson.decode(token)
if t[1] ~= 'P' or t[2] ~= epoch then
  count('invalid_transitions', 1)
  return 'invalid'
end
local x = call('HMGET', P .. 'x:' .. id, 'error', 'code', 'history')
local body = call('HGET', PARKED, id)
body = body and cmsgpack.unpack(body) or { 'null', '' }
local dlq_id = id .. '#' .. t[2]
local err, code = x[1] or '', x[2] or ''
local message = call('XADD', KEYS[4], '*', 'task_id', id, 'tool_name', t[10], 'payload', body[1], 'error', err,
  'error_code', code, 'retry_count', t[7], 'failed_at', t[3], 'dlq_id', dlq_id, 'token', token, 'meta', body[2],
  'history', x[3] or '[]', 'recorded_at', now_text)
call('HSET', P .. 'dead', id, message)
-- What was decided about an earlier task of this id says nothing about this one.
call('HDEL', P .. 'reviewed', id)
call('HDEL', P .. 'discards', id)
emit('DP', id, token, dlq_id)
moves().finish(id, t, token, 'f', 'failed', err, code, dlq_id, body[2])
emit('fD', id, token, code)
call('HDEL', LIVE, id)
call('ZREM', P .. 'dlq_pending', id)
call('HDEL', PARKED, id)
call('DEL', P .. 'x:' .. id)
count('failed', 1)
flush_moves()
return 'done'
