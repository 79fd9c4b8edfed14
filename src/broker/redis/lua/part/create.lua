-- New tasks, collected and written together.

local new_live, new_idem, new_parked, new_delayed = {}, {}, {}, {}
local live_n, plain_traits = 0, {}

-- Makes a task in its lane, or parked until it is due; returns its state's letter.
local function create(id, kind, priority, due, key, tenant, trace, limit, payload, meta)
  local lane = first_lane(kind, priority)
  -- Fields 9 to 14 of the token; those of tasks with nothing special are made once.
  local plain = key == '' and tenant == '' and trace == '' and limit == -1
  local traits = plain and plain_traits[lane]
  if not traits then
    traits = sub(pack({ kind, priority, key, tenant, trace, limit }), 2)
    if plain then
      plain_traits[lane] = traits
    end
  end
  local letter, step, message = 'Q', 'Q-', ''
  if due > now then
    letter, step = 'S', 'S-'
    new_parked[#new_parked + 1] = id
    new_parked[#new_parked + 1] = pack({ payload, meta })
    new_delayed[#new_delayed + 1] = due
    new_delayed[#new_delayed + 1] = id
  else
    message = push(lane, kind, priority, id, payload, meta)
  end
  local token = '\159\161' .. letter .. '\0\0\0\0' .. NOW .. NOW .. packed(message) .. traits .. '\160'
  new_live[live_n + 1], new_live[live_n + 2] = id, token
  live_n = live_n + 2
  if key ~= '' then
    new_idem[#new_idem + 1] = tenant .. '\0' .. key
    new_idem[#new_idem + 1] = id
  end
  emit(step, id, token)
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
      redis.pcall('PUBLISH', 'windlass:due', P)
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
