-- Where lanes stand among each other.

local function parse_lane(lane)
  local kind, priority, again = string.match(lane, '^(.+):(%d+)(%+?)$')
  return kind, tonumber(priority), again == '+'
end

local function unready(lane)
  call('ZREM', READY, lane)
  for _, class in ipairs(classes_of(ordinary or parse_lane(lane))) do
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
  local token = call('HGET', LIVE, entry[2][2])
  return token and cmsgpack.unpack(token)[7] or now
end
