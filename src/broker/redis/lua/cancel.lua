-- Ends a task that is not needed any more.
--
-- ARGV[3] id  ARGV[4] reason
-- RETURNS {'done', state letter before}, {'cancelled'} (before), {'invalid', state letter}, {'unknown'}
local id, reason = ARGV[3], ARGV[4]
local token = call('HGET', LIVE, id)
if not token then
  local finished = call('HGET', P .. 'done', id)
  if not finished then
    return { 'unknown' }
  end
  local letter = string.sub(finished, 1, 1)
  if letter == 'c' then
    return { 'cancelled' }
  end
  call('DEL', P .. 'none') -- the first write, allowed when memory is full
  count('invalid_transitions', 1)
  return { 'invalid', letter }
end
local t = cjson.decode(token)
local from = t[1]
call('DEL', P .. 'none') -- the first write, allowed when memory is full
if from == 'P' then
  count('invalid_transitions', 1)
  return { 'invalid', from }
end
local lane = t[5] ~= '' and lane_of(t)
local key = lane and P .. 'lane:' .. lane
local meta = ''
if lane then
  local entry = call('XRANGE', key, t[5], t[5])[1]
  meta = entry and entry[2][4] or ''
else
  local body = call('HGET', PARKED, id)
  meta = body and cmsgpack.unpack(body)[2] or ''
end
moves().finish(id, t, token, 'c', 'cancelled', reason, 'cancelled', '', meta)
call('HDEL', LIVE, id)
call('DEL', P .. 'x:' .. id)
if lane then
  call('XACK', key, group, t[5])
  call('XDEL', key, t[5])
  if from ~= 'R' then
    -- The lane's place is that of its first task.
    local unread = places().first_unread(key, last_read(key))
    if unread then
      local kind, priority, again = places().parse_lane(lane)
      places().rescore(lane, kind, score(priority, again, places().ready_since(unread)))
    else
      places().unready(lane)
    end
  end
else
  call('ZREM', P .. 'delayed', id)
  call('ZREM', P .. 'retrying', id)
  call('HDEL', PARKED, id)
end
emit('c' .. from, id, token, reason)
count('cancelled', 1)
flush_moves()
return { 'done', from }
