-- Module: makes a class of workers known.

-- Makes a class of workers known: lanes that it can do are in its index from now on.
local function add(class, types)
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

return { add = add }
