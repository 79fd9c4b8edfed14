-- Which sign of a worker's end the policy must accept before its tasks are taken.
local SIGNS = { pod_gone = 'PodGone', pod_force_deleted = 'PodGone', superseded = 'PodGone', worker_lost = 'WorkerLost' }

-- How many lanes, about, a call looks at: there may be thousands, and each costs a command or two.
local LANES_AT_ONCE = 100

-- Takes tasks back from one worker, a page of lanes at a time, and takes it out of the groups in which it holds
-- nothing; returns the ids that run again, those that died, where to go on (nil when all lanes were seen), how many
-- lanes it looked at, and whether the worker must stay known. It looks at up to `limit` entries, and none that it has looked at stays pending for that
-- worker: nothing is hidden behind what is no lease. `words` say more of its end; `from` is '0' at first.
-- Each step is whole in itself, and the worker is in the registry until the last one: whoever comes later, a sweep
-- at the latest, begins anew with what is left.
local function evict(worker, reason, crash, limit, words, from)
  local requeued, dead = {}, {}
  if SIGNS[reason] and not string.find(call('HGET', KEYS[1], 'reclaim_on'), SIGNS[reason], 1, true) then
    -- The visibility timeout brings them back; where it must not, another sign will, of a worker that is known.
    return requeued, dead, nil, 0, not string.find(call('HGET', KEYS[1], 'reclaim_on'), 'VisibilityTimeout', 1, true)
  end
  local page, seen = call('SSCAN', P .. 'lanes', from, 'COUNT', LANES_AT_ONCE), 0
  local lanes = page[2]
  table.sort(lanes)
  for number, lane in ipairs(lanes) do
    local key = P .. 'lane:' .. lane
    local pending = redis.pcall('XPENDING', key, group, '-', '+', limit + 1, worker)
    if not pending.err then
      for _, row in ipairs(pending) do
        if seen == limit then
          return requeued, dead, from, number
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
      -- All that was pending for it is not any more: otherwise the limit would have been reached.
      redis.pcall('XGROUP', 'DELCONSUMER', key, group, worker)
    end
  end
  return requeued, dead, page[1] ~= '0' and page[1] or nil, #lanes
end

-- Keeps a worker from new tasks, should it go on running: for an hour, in which its process ends.
local function fence(worker)
  local limit = 3600000
  call('ZADD', P .. 'fenced', now, worker)
  call('ZREMRANGEBYSCORE', P .. 'fenced', '-inf', now - limit)
  call('PEXPIRE', P .. 'fenced', limit)
end

-- Out of the registry. Where it is still a consumer (its tasks were not to be taken), a sweep removes it.
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
end
