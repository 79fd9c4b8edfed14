-- Runs a dead letter again as a new task.
--
-- ARGV[3] id of the dead task  ARGV[4] epoch  ARGV[5] new id
-- ARGV[6] '' or a corrected payload  ARGV[7] meta of the new task
-- RETURNS {'done', id}, {'replayed', id}, {'discarded'}, {'taken', id}, {'unknown'}
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
local t = cmsgpack.unpack(f.token)
if t[2] ~= tonumber(ARGV[4]) then
  return { 'unknown' }
end
local key = t[11]
if key ~= '' then
  local holder = holder_of(t[12], key)
  if holder and holder ~= id then
    return { 'taken', holder }
  end
end
if call('HEXISTS', LIVE, new_id) == 0 and call('HEXISTS', P .. 'done', new_id) == 0 then
  create(new_id, t[9], t[10], now, key, t[12], t[13], t[14], ARGV[6] ~= '' and ARGV[6] or f.payload, ARGV[7])
  flush_created()
  announce()
end
call('HSET', P .. 'reviewed', id, cmsgpack.pack({ 'replayed', new_id, now, message }))
call('HDEL', P .. 'dead', id)
count('replayed', 1)
flush_moves()
ring()
return { 'done', new_id }
