-- Lanes: one stream for each type and priority, and one more (marked +) for
-- what has run before, which goes first within its priority.
--
-- `ready` orders the lanes that hold work that nobody has read; `ready:<class>`
-- is the part of it that a class of workers can do.
local READY = P .. 'ready'
local RAN_BEFORE = 4398046511104 -- 2^42, above any time in ms
local touched, rings, routes = {}, {}, {}
local repairing = false -- a sweep mistrusts the indexes

-- The lane of tasks that have not run yet. Names are kept: making one out of
-- a number is slow.
local lane_names = {}
local function first_lane(kind, priority)
  local names = lane_names[kind]
  if not names then
    names = {}
    lane_names[kind] = names
  end
  local name = names[priority]
  if not name then
    name = kind .. ':' .. priority
    names[priority] = name
  end
  return name
end

local function lane_of(t)
  local claims = t[2]
  if t[1] == 'R' then
    claims = claims - 1
  end
  local lane = first_lane(t[9], t[10])
  return claims > 0 and lane .. '+' or lane
end

local function score(priority, again, since)
  local rank = order == 'HighestFirst' and priority_max - priority or priority - priority_min
  rank = math.max(0, math.min(127, rank))
  return rank * 2 * RAN_BEFORE + (again and 0 or RAN_BEFORE) + since
end

-- The classes, other than all, that can do a type.
local NO_CLASSES = {}
local function classes_of(kind)
  if ordinary then
    return NO_CLASSES
  end
  local classes = routes[kind]
  if not classes then
    classes = {}
    local words = call('HGET', P .. 'routes', kind)
    if words then
      for class in string.gmatch(words, '%S+') do
        classes[#classes + 1] = class
      end
    end
    routes[kind] = classes
  end
  return classes
end

-- Appends a task to its lane and returns the message id. An entry holds the
-- id, the payload and, where there is any, what the task carries along (meta).
local lane_keys = {}
local function push(lane, kind, priority, id, payload, meta)
  local key = lane_keys[lane]
  if not touched[lane] then
    touched[lane] = { kind, priority }
    key = P .. 'lane:' .. lane
    lane_keys[lane] = key
    if call('SISMEMBER', P .. 'lanes', lane) == 0 then
      call('SADD', P .. 'lanes', lane)
      if sub(lane, -1) == '+' then
        call('SADD', P .. 'lanes+', lane)
      end
      redis.pcall('XGROUP', 'CREATE', key, group, '0', 'MKSTREAM')
    end
  end
  if meta == '' then
    return call('XADD', key, '*', 'task_id', id, 'payload', payload)
  end
  return call('XADD', key, '*', 'task_id', id, 'payload', payload, 'meta', meta)
end

-- Puts every lane that was pushed to into the indexes. Those of classes hold
-- a lane exactly when `ready` does.
local function announce(why)
  for lane, traits in pairs(touched) do
    local value = score(traits[2], sub(lane, -1) == '+', now)
    if call('ZADD', READY, 'NX', value, lane) == 1 or repairing then
      rings.all = why
      for _, class in ipairs(classes_of(traits[1])) do
        call('ZADD', READY .. ':' .. class, 'NX', value, lane)
        rings[class] = why
      end
    end
  end
  touched = {}
end

local function index_of(class)
  return class == 'all' and READY or READY .. ':' .. class
end

-- Why a class is rung: it has work, or it may have, which is then looked at first.
local SURE, MAYBE = 1, 2

-- Wakes one sleeper of each class that was marked.
local function ring()
  if mode == 'Running' then
    for class, why in pairs(rings) do
      if why == SURE or call('ZCARD', index_of(class)) > 0 then
        call('XADD', P .. 'wake:' .. class, 'MAXLEN', '1', '*', 'r', '1')
      end
    end
  end
end
