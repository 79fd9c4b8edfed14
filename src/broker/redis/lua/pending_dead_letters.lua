-- Dead tasks whose dead letter is to be recorded, oldest first.
--
-- ARGV[3] '' or the id of one of them, after which to go on  ARGV[4] most of them
-- RETURNS {{{id, token, payload, meta, error, code, packed history}, …}, 1 if more follow, else 0}
--
-- Large payloads end a page early, so that no answer is larger than a few of them. What else a letter holds is bounded.
local out, bytes, most = {}, 0, tonumber(ARGV[4])
local first = ARGV[3] ~= '' and call('ZRANK', P .. 'dlq_pending', ARGV[3])
first = first and first + 1 or 0
for i, id in ipairs(call('ZRANGE', P .. 'dlq_pending', first, first + most)) do
  if i > most or bytes > 1048576 then
    -- Without a letter there is nothing to wait for: asked again, it would be the same.
    return { out, #out > 0 and 1 or 0 }
  end
  local token, body = call('HGET', LIVE, id), call('HGET', PARKED, id)
  if token then
    body = body and cmsgpack.unpack(body) or { 'null', '' }
    local x = call('HMGET', P .. 'x:' .. id, 'error', 'code', 'history')
    out[#out + 1] = { id, token, body[1], body[2], x[1] or '', x[2] or '', x[3] or '[]' }
    bytes = bytes + #body[1]
  end
end
return { out, 0 }
