-- Module: moves tasks whose time has come into their lanes.
local function promote_due(name, limit)
  local ids = call('ZRANGEBYSCORE', P .. name, '-inf', now, 'LIMIT', 0, limit)
  if #ids == 0 then
    return 0
  end
  local tokens, bodies = call('HMGET', LIVE, unpack(ids)), call('HMGET', PARKED, unpack(ids))
  local sets = {}
  for i, id in ipairs(ids) do
    if tokens[i] and bodies[i] then
      local t, body = cjson.decode(tokens[i]), cmsgpack.unpack(bodies[i])
      local from = t[1]
      if from == 'S' then
        t[1] = 'Q'
      end
      t[3] = now
      t[5] = push(lane_of(t), t[10], t[11], id, body[1], body[2])
      local token = cjson.encode(t)
      sets[#sets + 1], sets[#sets + 2] = id, token
      if from == 'S' then
        emit('QS', id, token)
      end
    end
  end
  if #sets > 0 then
    call('HSET', LIVE, unpack(sets))
  end
  call('HDEL', PARKED, unpack(ids))
  call('ZREM', P .. name, unpack(ids))
  return #ids
end

return { promote = promote_due }
