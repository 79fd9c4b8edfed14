-- Dead tasks whose dead letter is to be recorded, or one that was.
--
-- ARGV[3] most of them  ARGV[4] '' or the id of a task whose recorded dead letter is wanted
-- RETURNS {{id, token, payload, meta, error, code, packed history}, …}
local out = {}
if ARGV[4] ~= '' then
  local message = call('HGET', P .. 'dead', ARGV[4])
  if not message then
    local reviewed = call('HGET', P .. 'reviewed', ARGV[4])
    message = reviewed and cmsgpack.unpack(reviewed)[4]
  end
  local entry = message and call('XRANGE', KEYS[4], message, message)[1]
  if entry then
    local f = {}
    for i = 1, #entry[2], 2 do
      f[entry[2][i]] = entry[2][i + 1]
    end
    out[1] = { f.task_id, f.token, f.payload, f.meta, f.error, f.error_code, f.history }
  end
  return out
end
for _, id in ipairs(call('ZRANGE', P .. 'dlq_pending', 0, tonumber(ARGV[3]) - 1)) do
  local token, body = call('HGET', LIVE, id), call('HGET', PARKED, id)
  if token then
    body = body and cmsgpack.unpack(body) or { 'null', '' }
    local x = call('HMGET', P .. 'x:' .. id, 'error', 'code', 'history')
    out[#out + 1] = { id, token, body[1], body[2], x[1] or '', x[2] or '', x[3] or cmsgpack.pack({}) }
  end
end
return out
