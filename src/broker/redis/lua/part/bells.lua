-- Lanes that became ready, and who is woken for them.

-- Puts every lane that was pushed to into the indexes. Those of classes hold
-- a lane exactly when `ready` does.
local function announce(why)
  for lane, traits in pairs(touched) do
    local value = score(traits[2], sub(lane, -1) == '+', now)
    if call('ZADD', READY, 'NX', value, lane) == 1 or repairing then
      rings.all = why
      if not ordinary then
        for _, class in ipairs(places().classes_of(traits[1])) do
          call('ZADD', READY .. ':' .. class, 'NX', value, lane)
          rings[class] = why
        end
      end
    end
  end
  touched = {}
end

-- Why a class is rung: it has work, or it may have, which is then looked at first.
local SURE, MAYBE = 1, 2

-- Wakes one sleeper of each class that was marked. A ring that nobody heard is
-- passed over first, so there is never more than one to be heard; the stream is
-- cut a node at a time, because an exact cut walks over all that was cut before.
local function ring()
  if mode == 'Running' then
    for class, why in pairs(rings) do
      if why == SURE or call('ZCARD', class == 'all' and READY or READY .. ':' .. class) > 0 then
        local bell = P .. 'wake:' .. class
        redis.pcall('XGROUP', 'SETID', bell, 'bell', '$')
        call('XADD', bell, 'MAXLEN', '~', '1', '*', 'r', '1')
      end
    end
  end
end
