-- Module: where lanes stand among each other.

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

local function parse_lane(lane)
  local kind, priority, again = string.match(lane, '^(.+):(%d+)(%+?)$')
  return kind, tonumber(priority), again == '+'
end

local function unready(lane)
  call('ZREM', READY, lane)
  for _, class in ipairs(classes_of((parse_lane(lane)))) do
    call('ZREM', READY .. ':' .. class, lane)
  end
end

local function rescore(lane, kind, value)
  call('ZADD', READY, 'XX', value, lane)
  for _, class in ipairs(classes_of(kind)) do
    call('ZADD', READY .. ':' .. class, 'XX', value, lane)
  end
end

-- The first entry of a lane that nobody has read, or nil.
local function first_unread(key, last)
  return call('XRANGE', key, '(' .. last, '+', 'COUNT', 1)[1]
end

-- Since when the task of an entry is ready.
local function ready_since(entry)
  local token = call('HGET', LIVE, entry[2][1])
  return token and cjson.decode(token)[3] or now
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
  routes, ordinary = {}, false
  local lanes = call('ZRANGE', READY, 0, -1, 'WITHSCORES')
  for i = 1, #lanes, 2 do
    if covered[parse_lane(lanes[i])] then
      call('ZADD', READY .. ':' .. class, lanes[i + 1], lanes[i])
    end
  end
end

return {
  classes_of = classes_of, parse_lane = parse_lane, unready = unready, rescore = rescore, first_unread = first_unread,
  ready_since = ready_since, add_class = add_class,
}
