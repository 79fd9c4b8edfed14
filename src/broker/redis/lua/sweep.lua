-- Checks that live tasks are where their state says, and puts back what is not.
--
-- ARGV[3] cursor of the walk through live tasks  ARGV[4] how many at a time
-- ARGV[5] the server's run id
-- RETURNS {next cursor, checked, {id, what was wrong, …}, consumers removed, {lost workers},
--   1 if a silent worker still has tasks}
call('DEL', P .. 'none') -- the first write, allowed when memory is full
local page = call('HSCAN', LIVE, ARGV[3], 'COUNT', ARGV[4])
local repaired, read_up_to = {}, {}

local function wrong(id, what)
  repaired[#repaired + 1], repaired[#repaired + 2] = id, what
end

-- A task that should be in a lane.
local function check_lane(id, t)
  local lane = lane_of(t)
  local key = P .. 'lane:' .. lane
  if call('SADD', P .. 'lanes', lane) == 1 then
    wrong(id, 'its lane ' .. lane .. ' was not in the list of lanes')
  end
  local entry = call('XRANGE', key, t[5], t[5])[1]
  if not entry then
    wrong(id, 'its entry is gone from lane ' .. lane)
    redis.pcall('XACK', key, group, t[5])
    moves().die(id, t, 'null', '', 'repaired', 'entry_missing', 'its entry was deleted from lane ' .. lane)
    return
  end
  local pending = redis.pcall('XPENDING', key, group, t[5], t[5], 1)
  if pending.err then
    -- The next claim makes the group again.
    pending = {}
  end
  local owner = pending[1] and pending[1][2]
  if t[1] == 'R' then
    if owner ~= t[4] then
      wrong(id, 'it runs on ' .. t[4] .. ' and is pending for ' .. (owner or 'nobody'))
      moves().lose(id, t, key, entry, 'repaired', false)
    end
    return
  end
  read_up_to[key] = read_up_to[key] or last_read(key)
  if not is_earlier(read_up_to[key], t[5]) then
    wrong(id, 'it waits in lane ' .. lane .. ' behind where that was read')
    call('XACK', key, group, t[5])
    call('XDEL', key, t[5])
    t[5] = push(lane, t[10], t[11], id, entry[2][2], entry[2][4] or '')
    call('HSET', LIVE, id, cjson.encode(t))
    return
  end
  local indexes = { READY }
  for _, class in ipairs(places().classes_of(t[10])) do
    indexes[#indexes + 1] = READY .. ':' .. class
  end
  for _, index in ipairs(indexes) do
    if not call('ZSCORE', index, lane) then
      wrong(id, 'its lane ' .. lane .. ' was not among the ready ones')
      touched[lane], repairing = { t[10], t[11] }, true
      return
    end
  end
end

-- A task that should be parked, and in a set that brings it back.
local function check_parked(id, t, set, score_of)
  if not call('ZSCORE', P .. set, id) then
    wrong(id, 'it is not in ' .. set)
    call('ZADD', P .. set, score_of, id)
  end
  if call('HEXISTS', PARKED, id) == 0 and t[1] ~= 'P' then
    wrong(id, 'its payload is gone')
    call('ZREM', P .. set, id)
    moves().die(id, t, 'null', '', 'repaired', 'entry_missing', 'its parked payload was deleted')
  end
end

for i = 1, #page[2], 2 do
  local id, t = page[2][i], cjson.decode(page[2][i + 1])
  if t[5] ~= '' and t[1] ~= 'P' then
    check_lane(id, t)
  elseif t[1] == 'S' then
    check_parked(id, t, 'delayed', now)
  elseif t[1] == 'T' then
    check_parked(id, t, 'retrying', now)
  elseif t[1] == 'P' then
    check_parked(id, t, 'dlq_pending', t[3])
  end
end

-- Workers that have been silent for too long.
local lost, unfinished = {}, 0
if not clock_is_new(ARGV[5]) then
  local silent = now - tonumber(call('HGET', KEYS[1], 'worker_lost'))
  local budget = 20
  for _, worker in ipairs(call('ZRANGEBYSCORE', P .. 'heartbeats', '-inf', silent, 'LIMIT', 0, 5)) do
    local requeued, dead, more = evict(worker, 'worker_lost', true, budget)
    budget = budget - #requeued - #dead
    if more then
      unfinished = 1
    else
      forget(worker)
      lost[#lost + 1] = worker
    end
  end
end

-- Consumers that no registered worker stands behind and that hold nothing.
local removed = 0
if ARGV[3] == '0' then
  for _, lane in ipairs(call('SMEMBERS', P .. 'lanes')) do
    local key = P .. 'lane:' .. lane
    local consumers = redis.pcall('XINFO', 'CONSUMERS', key, group)
    if not consumers.err then
      for _, info in ipairs(consumers) do
        local c = {}
        for j = 1, #info, 2 do
          c[info[j]] = info[j + 1]
        end
        if c.pending == 0 and tonumber(c.idle) > 60000 and call('HEXISTS', P .. 'workers', c.name) == 0 then
          call('XGROUP', 'DELCONSUMER', key, group, c.name)
          removed = removed + 1
        end
      end
    end
  end
end
announce(SURE)
flush_moves()
ring()
return { page[1], #page[2] / 2, repaired, removed, lost, unfinished }
