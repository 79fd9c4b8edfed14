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
  local lane = first_lane(t[10], t[11])
  return claims > 0 and lane .. '+' or lane
end

local function score(priority, again, since)
  local rank = order == 'HighestFirst' and priority_max - priority or priority - priority_min
  rank = math.max(0, math.min(127, rank))
  return rank * 2 * RAN_BEFORE + (again and 0 or RAN_BEFORE) + since
end

-- Appends a task to its lane and returns the message id. An entry's first
-- field is named by the task's id and holds the payload: every name less is a
-- string less that Lua makes of it. What the task carries along follows as `meta`.
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
    return call('XADD', key, '*', id, payload)
  end
  return call('XADD', key, '*', id, payload, 'meta', meta)
end
