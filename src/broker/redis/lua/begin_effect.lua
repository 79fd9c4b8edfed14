-- Hands out the right to begin an outside effect, once.
--
-- ARGV[3] task id  ARGV[4] token  ARGV[5] the effect's key  ARGV[6] mark of this call
-- ARGV[7] '' or the mark of the beginning that was found not to have happened
-- RETURNS {'begin'}, {'doubt', since ms, task, epoch, worker, mark}, {'done', answer} or {'lost'}
--
-- The record `effect:<tenant>\0<key>` is packed:
--   {'b' begun or 'd' done, mark, task, epoch, worker, since ms, kept until ms, answer}
-- It stays for as long as results are kept, and at least while its task may
-- still run: else a late attempt would not see the doubt. The server removes
-- it; the time in it counts where a test injects the time.
--
-- The only write is one that a full Redis refuses: what cannot be remembered
-- must not begin. Whether this call has answered before is told by its mark.
local id, token = ARGV[3], ARGV[4]
if call('HGET', LIVE, id) ~= token then
  return { 'lost' }
end
local t = cjson.decode(token)
local key = P .. 'effect:' .. t[13] .. '\0' .. ARGV[5]
local kept = call('GET', key)
local e = kept and cmsgpack.unpack(kept)
if e and e[7] > now then
  if e[1] == 'd' then
    return { 'done', e[8] }
  elseif e[2] == ARGV[6] then
    return { 'begin' }
  elseif e[2] ~= ARGV[7] then
    return { 'doubt', string.format('%.0f', e[6]), e[3], e[4], e[5], e[2] }
  end
end
local retention = call('HGET', KEYS[1], 'retention') -- none in a policy from before there was retention
local for_ms = math.min(math.max(retention and cmsgpack.unpack(retention)[1] or 0, t[6] + deadline - now, 1), 3155760000000)
local record = cmsgpack.pack({ 'b', ARGV[6], id, t[2], t[4], now, now + for_ms, '' })
-- Where the time is a test's, the server's own must not end it.
call('SET', key, record, 'PX', string.format('%.0f', injected and math.max(for_ms, 3600000) or for_ms))
return { 'begin' }
