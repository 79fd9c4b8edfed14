-- Gives a dead letter up, once as many people agree as the policy asks for.
--
-- ARGV[3] id of the dead task  ARGV[4] epoch  ARGV[5] person  ARGV[6] reason
-- RETURNS {'done'}, {'second'} (one more has to agree), {'same'} (somebody else has to agree),
--   {'replayed', id}, {'discarded'} (before), {'unknown'}
--
-- Who asked first is kept in `discards`, who decided in `reviewed`, and both go to the outbox.
local id, person, reason = ARGV[3], ARGV[5], ARGV[6]
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
for i = 1, #entry[2], 2 do
  if entry[2][i] == 'token' and cjson.decode(entry[2][i + 1])[2] ~= tonumber(ARGV[4]) then
    return { 'unknown' }
  end
end
local asked = call('HGET', P .. 'discards', id)
if tonumber(call('HGET', KEYS[1], 'discard_approvals')) > 1 then
  if not asked then
    call('DEL', P .. 'none') -- the first write, allowed when memory is full
    call('HSET', P .. 'discards', id, cmsgpack.pack({ person, reason, now }))
    flush_decision('requested', id, ARGV[4], person, reason, '')
    return { 'second' }
  elseif cmsgpack.unpack(asked)[1] == person then
    return { 'same' }
  end
end
call('HDEL', P .. 'dead', id)
call('HDEL', P .. 'discards', id)
call('HSET', P .. 'reviewed', id, cmsgpack.pack({ 'discarded', person, now, message, reason, asked or '' }))
count('discarded', 1)
flush_decision('discarded', id, ARGV[4], person, reason, '')
return { 'done' }
