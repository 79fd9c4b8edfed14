-- Runs a dead letter again as a new task.
--
-- ARGV[3] id of the dead task  ARGV[4] epoch  ARGV[5] new id
-- ARGV[6] '' or a corrected payload  ARGV[7] its content hash, or ''  ARGV[8] meta of the new task
-- ARGV[9] person  ARGV[10] reason or ''
-- RETURNS {'done', id}, {'replayed', id} (before), {'discarded'} (before), {'taken', id that has the key},
--   {'id', new id that is in use}, {'unknown'}, {'closed'}, {'outbox'}, {'payload', most bytes}
--
-- The first write is an XADD: refused when memory is full.
local id, new_id = ARGV[3], ARGV[5]
local decided = call('HGET', P .. 'reviewed', id)
if decided then
  local decision = cmsgpack.unpack(decided)
  return decision[1] == 'replayed' and { 'replayed', decision[2] } or { 'discarded' }
end
local message = call('HGET', P .. 'dead', id)
local entry = message and call('XRANGE', KEYS[4], message, message)[1]
if not entry then
  return { 'unknown' }
end
local f = {}
for i = 1, #entry[2], 2 do
  f[entry[2][i]] = entry[2][i + 1]
end
local t = cjson.decode(f.token)
if t[2] ~= tonumber(ARGV[4]) then
  return { 'unknown' }
end
if mode == 'Closed' then
  return { 'closed' }
elseif recording and call('XLEN', P .. 'events') >= head[13] then
  return { 'outbox' }
elseif #ARGV[6] > head[9] then
  return { 'payload', head[9] }
elseif call('HEXISTS', LIVE, new_id) == 1 or call('HEXISTS', P .. 'done', new_id) == 1 then
  return { 'id', new_id }
end
local key = t[12]
if ARGV[6] ~= '' and head[10] == 'ContentHash' then
  key = ARGV[7]
end
if key ~= '' then
  local holder = holder_of(t[13], key)
  if holder and holder ~= id then
    return { 'taken', holder }
  end
end
create(new_id, ARGV[6] ~= '' and ARGV[6] or f.payload, ARGV[8],
  traits(t[10], t[11], now, key, t[13], t[14], t[15]))
flush_created()
announce(SURE)
call('HSET', P .. 'reviewed', id, cmsgpack.pack({ 'replayed', new_id, now, message, ARGV[9], ARGV[10] }))
call('HDEL', P .. 'dead', id)
call('HDEL', P .. 'discards', id)
count('replayed', 1)
flush_decision('replayed', id, ARGV[4], ARGV[9], ARGV[10], new_id)
ring()
return { 'done', new_id }
