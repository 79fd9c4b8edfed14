-- Keeps the answer of an outside effect, or gives its beginning up.
--
-- ARGV[3] task id  ARGV[4] token of the attempt  ARGV[5] the effect's key
-- ARGV[6] 'commit' or 'abandon'  ARGV[7] answer
-- ARGV[8] '' or the mark of the beginning that was found to have happened
-- RETURNS {'committed'}, {'abandoned'}, {'done', answer kept before}, {'other'} (somebody else began it since),
--   {'unknown'} or {'large', most bytes}
--
-- The lease may be lost: what happened, happened. So the token only says whose
-- attempt this is. The record is described in begin_effect. A commit goes to
-- the outbox, whatever that holds: what happened cannot be refused.
local t = cjson.decode(ARGV[4])
local key = P .. 'effect:' .. t[13] .. '\0' .. ARGV[5]
local kept = call('GET', key)
local e = kept and cmsgpack.unpack(kept)
if not e or e[7] <= now then
  return { 'unknown' }
elseif e[1] == 'd' then
  return { 'done', e[8] }
elseif ARGV[8] ~= '' and e[2] ~= ARGV[8] or ARGV[8] == '' and (e[3] ~= ARGV[3] or e[4] ~= t[2]) then
  return { 'other' }
elseif ARGV[6] == 'abandon' then
  call('DEL', key)
  return { 'abandoned' }
elseif #ARGV[7] > head[7] then
  return { 'large', head[7] }
end
local retention = call('HGET', KEYS[1], 'retention') -- none in a policy from before there was retention
local for_ms = math.min(math.max(retention and cmsgpack.unpack(retention)[1] or 0, t[6] + deadline - now, 1), 3155760000000)
e[1], e[7], e[8] = 'd', now + for_ms, ARGV[7]
call('DEL', P .. 'none') -- the first write: an answer is kept also when memory is full
call('SET', key, cmsgpack.pack(e), 'PX', string.format('%.0f', injected and math.max(for_ms, 3600000) or for_ms))
if recording then
  call('XADD', P .. 'events', '*', 'at', now_text, 'effects', cmsgpack.pack({ ARGV[3], ARGV[5], ARGV[4] }))
  if call('XLEN', P .. 'events') == 1 then
    redis.pcall('PUBLISH', 'windlass:notices', P .. 'outbox')
  end
end
return { 'committed' }
