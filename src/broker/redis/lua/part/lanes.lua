-- Lanes: one stream for each type and priority, and one more (marked +) for
-- what has run before, which goes first within its priority.
--
-- `ready` orders the lanes that hold work that nobody has read; `ready:<class>`
-- is the part of it that a class of workers can do.
local READY = P .. 'ready'
local RAN_BEFORE = 4398046511104 -- 2^42, above any time in ms
local touched, rings, routes = {}, {}, {}

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

local function parse_lane(lane)
  local kind, priority, again = string.match(lane, '^(.+):(%d+)(%+?)$')
  return kind, tonumber(priority), again == '+'
end

local function score(priority, again, since)
  local rank = order == 'HighestFirst' and priority_max - priority or priority - priority_min
  rank = math.max(0, math.min(127, rank))
  return rank * 2 * RAN_BEFORE + (again and 0 or RAN_BEFORE) + since
end

-- The classes, other than all, that can do a type.
local function classes_of(kind)
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
    if call('SADD', P .. 'lanes', lane) == 1 then
      redis.pcall('XGROUP', 'CREATE', key, group, '0', 'MKSTREAM')
    end
  end
  if meta == '' then
    return call('XADD', key, '*', 'task_id', id, 'payload', payload)
  end
  return call('XADD', key, '*', 'task_id', id, 'payload', payload, 'meta', meta)
end

-- Puts every lane that was pushed to into the indexes.
local function announce()
  for lane, traits in pairs(touched) do
    local value = score(traits[2], string.sub(lane, -1) == '+', now)
    if call('ZADD', READY, 'NX', value, lane) == 1 then
      rings.all = true
    end
    for _, class in ipairs(classes_of(traits[1])) do
      if call('ZADD', READY .. ':' .. class, 'NX', value, lane) == 1 then
        rings[class] = true
      end
    end
  end
  touched = {}
end

local function unready(lane, kind)
  call('ZREM', READY, lane)
  for _, class in ipairs(classes_of(kind)) do
    call('ZREM', READY .. ':' .. class, lane)
  end
end

local function rescore(lane, kind, value)
  call('ZADD', READY, 'XX', value, lane)
  for _, class in ipairs(classes_of(kind)) do
    call('ZADD', READY .. ':' .. class, 'XX', value, lane)
  end
end

local function index_of(class)
  return class == 'all' and READY or READY .. ':' .. class
end

-- Wakes one sleeper of each class that was marked and still has work, or must
-- look again whatever is ready.
local function ring()
  if mode == 'Running' then
    for class, why in pairs(rings) do
      if why ~= true or call('ZCARD', index_of(class)) > 0 then
        call('XADD', P .. 'wake:' .. class, 'MAXLEN', '1', '*', 'r', '1')
      end
    end
  end
end

-- Whether one message id comes before another.
local function is_earlier(a, b)
  local am, as = string.match(a, '^(%d+)-(%d+)$')
  local bm, bs = string.match(b, '^(%d+)-(%d+)$')
  am, bm = tonumber(am), tonumber(bm)
  return am < bm or (am == bm and tonumber(as) < tonumber(bs))
end

-- The first entry of a lane that nobody has read, or nil.
local function first_unread(key, last)
  return call('XRANGE', key, '(' .. last, '+', 'COUNT', 1)[1]
end

-- Since when the task of an entry is ready.
local function ready_since(entry)
  local token = call('HGET', LIVE, entry[2][2])
  return token and cmsgpack.unpack(token)[7] or now
end

-- Where the group of workers has read a stream up to.
local function last_read(key)
  local groups = redis.pcall('XINFO', 'GROUPS', key)
  if not groups.err then
    for _, info in ipairs(groups) do
      local name, last
      for i = 1, #info, 2 do
        if info[i] == 'name' then name = info[i + 1] end
        if info[i] == 'last-delivered-id' then last = info[i + 1] end
      end
      if name == group then
        return last
      end
    end
  end
  return '0-0'
end

-- Makes a class of workers known: lanes that it can do are in its index from now on.
local function add_class(class, types)
  if call('HSETNX', P .. 'classes', class, types) == 0 then
    return
  end
  local covered = {}
  for kind in string.gmatch(types, '[^,]+') do
    covered[kind] = true
    local words = call('HGET', P .. 'routes', kind)
    call('HSET', P .. 'routes', kind, words and words .. ' ' .. class or class)
  end
  routes = {}
  local lanes = call('ZRANGE', READY, 0, -1, 'WITHSCORES')
  for i = 1, #lanes, 2 do
    if covered[parse_lane(lanes[i])] then
      call('ZADD', READY .. ':' .. class, lanes[i + 1], lanes[i])
    end
  end
end
