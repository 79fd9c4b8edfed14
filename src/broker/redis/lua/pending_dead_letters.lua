-- Dead tasks whose dead letter is to be recorded, oldest first.
--
-- ARGV[3] most of them
-- RETURNS {{id, token, payload, meta, error, code, packed history}, …}
local out = {}
for _, id in ipairs(call('ZRANGE', P .. 'dlq_pending', 0, tonumber(ARGV[3]) - 1)) do
  local token, body = call('HGET', LIVE, id), call('HGET', PARKED, id)
  if token then
    body = body and cmsgpack.unpack(body) or { 'null', '' }
    local x = call('HMGET', P .. 'x:' .. id, 'error', 'code', 'history')
    out[#out + 1] = { id, token, body[1], body[2], x[1] or '', x[2] or '', x[3] or '[]' }
  end
end
return out
