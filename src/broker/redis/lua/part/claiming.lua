-- Leases ready tasks to a worker. Each task comes back as four values:
-- id, payload, meta, token.

-- Reads a lane; a group that is gone (a flush, a failover) is made again.
-- From the start: what is still in a lane is queued or running, never done.
local function read_lane(key, worker, limit)
  local read = redis.pcall('XREADGROUP', 'GROUP', group, worker, 'COUNT', limit, 'STREAMS', key, '>')
  if read and read.err then
    if not string.find(read.err, 'NOGROUP', 1, true) then
      return call('XREADGROUP', 'GROUP', group, worker, 'COUNT', limit, 'STREAMS', key, '>')
    end
    call('XGROUP', 'CREATE', key, group, '0', 'MKSTREAM')
    read = call('XREADGROUP', 'GROUP', group, worker, 'COUNT', limit, 'STREAMS', key, '>')
  end
  return read and read[1][2] or {}
end

-- What `task.reclaimed` says besides who claimed it.
local function reclaimed_detail(id, t)
  local reason = t[15]
  if reason == 'failure' or reason == 'released' or reason == 'rate_limited' then
    return nil
  end
  local row = call('HMGET', P .. 'x:' .. id, 'from', 'message')
  return cjson.encode({ reason = reason, from = row[1] or '', message = row[2] or '' })
end

-- Takes what was read from one lane; returns how many tasks the worker got.
local function take(key, entries, worker, out)
  local ids, taken, sets, drop = {}, 0, {}, {}
  for i = 1, #entries do
    ids[i] = entries[i][2][2]
  end
  local tokens = call('HMGET', LIVE, unpack(ids))
  local packed_worker, oldest, n = packed(worker), now - deadline, #out
  for i = 1, #entries do
    local id, message, fields, old = ids[i], entries[i][1], entries[i][2], tokens[i]
    local token, step, detail = old and first_lease(old, message, packed_worker, oldest), 'RQ', nil
    if not token then
      local t = old and unpack_token(old)
      if not t or t[8] ~= message then
        drop[#drop + 1] = message
      elseif t[1] == 'R' then
        -- The group was made again under a worker that still holds the lease.
        call('XCLAIM', key, group, t[15], 0, message, 'JUSTID')
      elseif t[6] < oldest then
        drop[#drop + 1] = message
        die(id, t, fields[4], fields[6] or '', 'permanent', 'deadline_exceeded', 'was not done within its deadline')
      else
        step = 'R' .. t[1]
        if t[1] == 'T' then
          detail = reclaimed_detail(id, t)
        end
        t[1], t[2], t[7], t[15] = 'R', t[2] + 1, now, worker
        token = pack(t)
      end
    end
    if token then
      local at = taken * 2
      sets[at + 1], sets[at + 2] = id, token
      out[n + 1], out[n + 2], out[n + 3], out[n + 4] = id, fields[4], fields[6] or '', token
      n, taken = n + 4, taken + 1
      emit(step, id, token, detail)
      if injected then
        call('XCLAIM', key, group, worker, 0, message, 'TIME', now, 'JUSTID')
      end
    end
  end
  if #drop > 0 then
    call('XACK', key, group, unpack(drop))
    call('XDEL', key, unpack(drop))
  end
  if taken > 0 then
    call('HSET', LIVE, unpack(sets))
  end
  return taken
end

-- After an answer was lost: what is pending for the worker and not among
-- what it holds. By epoch: the lost call may have settled a task and claimed
-- it again.
local function hand_back(worker, held, out)
  local taken = 0
  for _, lane in ipairs(call('SMEMBERS', P .. 'lanes')) do
    local key = P .. 'lane:' .. lane
    local pending = redis.pcall('XPENDING', key, group, '-', '+', 1000, worker)
    if not pending.err then
      for _, row in ipairs(pending) do
        local entry = call('XRANGE', key, row[1], row[1])[1]
        local id = entry and entry[2][2]
        if id then
          local token = call('HGET', LIVE, id)
          local t = token and cmsgpack.unpack(token)
          if t and t[1] == 'R' and t[8] == row[1] and t[15] == worker and t[2] ~= held[id] then
            local n = #out
            out[n + 1], out[n + 2], out[n + 3], out[n + 4] = id, entry[2][4], entry[2][6] or '', token
            taken = taken + 1
          end
        end
      end
    end
  end
  return taken
end

-- worker, class, types and limit as the client gave them; `held` is nil or,
-- after an answer was lost, the epochs of what the worker holds, by id.
local function claim_some(worker, class, types, limit, held)
  local out, behind = {}, false
  if limit > 0 and mode ~= 'Closed' then
    -- A full batch of any of them may have left something for this worker behind.
    behind = file_raw(32) == 32
    behind = promote_due('delayed', 16) == 16 or behind
    behind = promote_due('retrying', 16) == 16 or behind
    announce()
    if class ~= 'all' then
      add_class(class, types)
    end
  end
  if mode ~= 'Running' then
    if held then
      hand_back(worker, held, out)
    end
    return out
  end
  if held then
    limit = limit - hand_back(worker, held, out)
  end
  local index, wanted, rounds = index_of(class), limit, 0
  while limit > 0 and rounds < 128 do
    rounds = rounds + 1
    local lane = call('ZRANGE', index, 0, 0)[1]
    if not lane then
      break
    end
    local key, asked = P .. 'lane:' .. lane, limit
    local entries = read_lane(key, worker, asked)
    if #entries > 0 then
      limit = limit - take(key, entries, worker, out)
    end
    local kind, priority, again = parse_lane(lane)
    if #entries < asked then
      unready(lane, kind)
    elseif limit == 0 then
      local unread = first_unread(key, entries[#entries][1])
      if not unread then
        unready(lane, kind)
      else
        rescore(lane, kind, score(priority, again, ready_since(unread)))
      end
    end
  end
  if behind then
    rings[class] = 'whatever is ready'
  elseif limit <= 0 or rounds == 128 then
    rings[class] = true
  elseif limit == wanted then
    -- Nothing for this class: what was rung so far was for work that is gone.
    redis.pcall('XGROUP', 'SETID', KEYS[2], 'bell', '$')
    redis.pcall('XGROUP', 'SETID', P .. 'wake:' .. class, 'bell', '$')
  end
  count('claimed', #out / 4)
  return out
end
