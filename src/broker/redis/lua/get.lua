-- All that is known of a task, in one look.
--
-- ARGV[3] id, or an id that a raw producer sent for the same work
-- RETURNS {} or {'live', id, token, payload, meta, due ms or '', {x fields}, progress or ''}
--   or {'done', id, status letter, {result fields}, '', '', payload of the dead letter or '', replayed as or ''}
local id = ARGV[3]
local token, finished = call('HGET', LIVE, id), call('HGET', P .. 'done', id)
if not token and not finished then
  id = call('HGET', P .. 'alias', id)
  if not id then
    return {}
  end
  token, finished = call('HGET', LIVE, id), call('HGET', P .. 'done', id)
end
if token then
  local t = cjson.decode(token)
  local payload, meta, due = '', '', ''
  if t[5] ~= '' then
    local entry = call('XRANGE', P .. 'lane:' .. lane_of(t), t[5], t[5])[1]
    if entry then
      payload, meta = entry[2][2], entry[2][4] or ''
    end
  else
    local body = call('HGET', PARKED, id)
    if body then
      payload, meta = unpack(cmsgpack.unpack(body))
    end
    due = call('ZSCORE', P .. (t[1] == 'S' and 'delayed' or 'retrying'), id) or ''
  end
  return { 'live', id, token, payload, meta, due, call('HGETALL', P .. 'x:' .. id),
    call('HGET', P .. 'progress', id) or '' }
end
if not finished then
  return {}
end
local message = string.sub(finished, 2)
local entry = call('XRANGE', KEYS[3], message, message)[1]
local letter, payload, replayed = string.sub(finished, 1, 1), '', ''
-- Of an id that is used again, an earlier task's dead letter may still be there.
if letter == 'f' then
  local dead = call('HGET', P .. 'dead', id)
  local reviewed = not dead and call('HGET', P .. 'reviewed', id)
  if reviewed then
    local decision = cmsgpack.unpack(reviewed)
    dead = decision[4]
    replayed = decision[1] == 'replayed' and decision[2] or ''
  end
  local found = dead and call('XRANGE', KEYS[4], dead, dead)[1]
  payload = found and found[2][6] or ''
end
return { 'done', id, letter, entry and entry[2] or {}, '', '', payload, replayed }
