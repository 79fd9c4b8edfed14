-- Which sign of a worker's end the policy must accept before its tasks are taken.
local SIGNS = { pod_gone = 'PodGone', pod_force_deleted = 'PodGone', superseded = 'PodGone', worker_lost = 'WorkerLost' }

-- Takes all tasks back from one worker; returns the ids that run again, those
-- that died, and whether there may be more. It looks at up to `limit` entries, and
-- none that it has looked at stays pending for that worker: nothing is hidden behind
-- what is no lease. `words` say more of its end.
local function evict(worker, reason, crash, limit, words)
  local requeued, dead = {}, {}
  if SIGNS[reason] and not string.find(call('HGET', KEYS[1], 'reclaim_on'), SIGNS[reason], 1, true) then
    return requeued, dead, false -- the visibility timeout brings them back
  end
  local lanes, seen = call('SMEMBERS', P .. 'lanes'), 0
  table.sort(lanes)
  for _, lane in ipairs(lanes) do
    local key = P .. 'lane:' .. lane
    local pending = redis.pcall('XPENDING', key, group, '-', '+', limit + 1, worker)
    if not pending.err then
      for _, row in ipairs(pending) do
        if seen == limit then
          return requeued, dead, true
        end
        seen = seen + 1
        local entry = call('XRANGE', key, row[1], row[1])[1]
        local id = entry and entry[2][1]
        local token = id and call('HGET', LIVE, id)
        local t = token and cjson.decode(token)
        if not entry then
          call('XACK', key, group, row[1])
        elseif not t or t[1] ~= 'R' or t[5] ~= row[1] then
          moves().clear(id, t, key, entry)
        elseif t[4] ~= worker then
          call('XCLAIM', key, group, t[4], 0, row[1], 'JUSTID')
        elseif moves().lose(id, t, key, entry, reason, crash, words) == 'P' then
          dead[#dead + 1] = id
        else
          requeued[#requeued + 1] = id
        end
      end
    end
  end
  return requeued, dead, false
end

-- Keeps a worker from new tasks, should it go on running: for an hour, in which its process ends.
local function fence(worker)
  local limit = 3600000
  call('ZADD', P .. 'fenced', now, worker)
  call('ZREMRANGEBYSCORE', P .. 'fenced', '-inf', now - limit)
  call('PEXPIRE', P .. 'fenced', limit)
end

-- Out of the registry, and out of every group in which it holds nothing.
local function forget(worker)
  local words = call('HGET', P .. 'workers', worker)
  call('ZREM', P .. 'heartbeats', worker)
  call('HDEL', P .. 'workers', worker)
  if words then
    local place = cmsgpack.unpack(words)[1]
    if place ~= '' and call('HGET', P .. 'places', place) == worker then
      call('HDEL', P .. 'places', place)
    end
  end
  for _, lane in ipairs(call('SMEMBERS', P .. 'lanes')) do
    local key = P .. 'lane:' .. lane
    local pending = redis.pcall('XPENDING', key, group, '-', '+', 1, worker)
    if not pending.err and #pending == 0 then
      redis.pcall('XGROUP', 'DELCONSUMER', key, group, worker)
    end
  end
end
