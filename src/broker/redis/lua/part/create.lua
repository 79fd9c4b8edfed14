-- New tasks, collected and written together.
local new_live, new_idem, new_parked, new_delayed = {}, {}, {}, {}

local function create(id, kind, priority, due, key, tenant, trace, max_retries, payload, meta)
  local t = { 'Q', 0, 0, 0, 0, now, now, kind, priority, '', '', key, tenant, trace, max_retries }
  if due > now then
    t[1] = 'S'
    new_parked[#new_parked + 1] = id
    new_parked[#new_parked + 1] = cmsgpack.pack({ payload, meta })
    new_delayed[#new_delayed + 1] = due
    new_delayed[#new_delayed + 1] = id
  else
    t[10] = push(id, t, payload, meta)
  end
  local token = cmsgpack.pack(t)
  new_live[#new_live + 1] = id
  new_live[#new_live + 1] = token
  if key ~= '' then
    new_idem[#new_idem + 1] = tenant .. '\0' .. key
    new_idem[#new_idem + 1] = id
  end
  emit(t[1], id, '', token, '')
  return t[1]
end

local function flush_created()
  local n = #new_live / 2
  if n == 0 then
    return
  end
  if #new_delayed > 0 then
    local first = call('ZRANGE', P .. 'delayed', 0, 0)[1]
    call('HSET', PARKED, unpack(new_parked))
    call('ZADD', P .. 'delayed', unpack(new_delayed))
    if call('ZRANGE', P .. 'delayed', 0, 0)[1] ~= first then
      tell_leader()
    end
  end
  call('HSET', LIVE, unpack(new_live))
  if #new_idem > 0 then
    call('HSET', P .. 'idem', unpack(new_idem))
  end
  count('created', n)
  new_live, new_idem, new_parked, new_delayed = {}, {}, {}, {}
end

-- The task that a key stands for, if that task is still known.
local function holder_of(tenant, key)
  local id = call('HGET', P .. 'idem', tenant .. '\0' .. key)
  if id and (call('HEXISTS', LIVE, id) == 1 or call('HEXISTS', P .. 'done', id) == 1) then
    return id
  end
  return nil
end
