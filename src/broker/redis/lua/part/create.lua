-- New tasks, collected and written together.

local new_live, new_idem, new_parked, new_delayed = {}, {}, {}, {}
local live_n = 0
-- A new token is this, its message id, and the tail of its traits.
local QUEUED = '["Q",0,' .. now_text .. ',"","'

-- What tasks may have in common, and so is worked out once.
local function traits(kind, priority, due, key, tenant, trace, limit)
  return {
    kind = kind, priority = priority, lane = first_lane(kind, priority), due = due, key = key,
    tenant = tenant, tail = '",' .. now_text .. ',0,0,0,' .. sub(pack({ kind, priority, key, tenant, trace, limit }), 2),
  }
end

-- Makes a task in its lane, or parked until it is due; returns its state's letter.
local function create(id, payload, meta, t)
  local token, letter
  if t.due > now then
    letter = 'S'
    token = '["S",0,' .. now_text .. ',"","' .. t.tail
    new_parked[#new_parked + 1] = id
    new_parked[#new_parked + 1] = cmsgpack.pack({ payload, meta })
    new_delayed[#new_delayed + 1] = t.due
    new_delayed[#new_delayed + 1] = id
    emit('S-', id, token)
  else
    letter = 'Q'
    token = QUEUED .. push(t.lane, t.kind, t.priority, id, payload, meta) .. t.tail
    emit('Q-', id, token)
  end
  new_live[live_n + 1], new_live[live_n + 2] = id, token
  live_n = live_n + 2
  if t.key ~= '' then
    new_idem[#new_idem + 1] = t.tenant .. '\0' .. t.key
    new_idem[#new_idem + 1] = id
  end
  return letter
end

local function flush_created()
  if live_n == 0 then
    return
  end
  if #new_delayed > 0 then
    local first = call('ZRANGE', P .. 'delayed', 0, 0)[1]
    call('HSET', PARKED, unpack(new_parked))
    call('ZADD', P .. 'delayed', unpack(new_delayed))
    if call('ZRANGE', P .. 'delayed', 0, 0)[1] ~= first then
      redis.pcall('PUBLISH', 'windlass:notices', P .. 'due')
    end
  end
  call('HSET', LIVE, unpack(new_live))
  if #new_idem > 0 then
    call('HSET', P .. 'idem', unpack(new_idem))
  end
  count('created', live_n / 2)
  new_live, new_idem, new_parked, new_delayed, live_n = {}, {}, {}, {}, 0
end

-- How many lanes there are, not counting those of what has run before.
local function first_lanes()
  return call('SCARD', P .. 'lanes') - call('SCARD', P .. 'lanes+')
end

-- The task that a key stands for, if that task is still known.
local function holder_of(tenant, key)
  local id = call('HGET', P .. 'idem', tenant .. '\0' .. key)
  if id and (call('HEXISTS', LIVE, id) == 1 or call('HEXISTS', P .. 'done', id) == 1) then
    return id
  end
  return nil
end
