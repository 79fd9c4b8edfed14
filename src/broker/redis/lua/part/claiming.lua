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

-- The token of a queued task that a worker claims for the first time, or nil
-- if it is not such a one and has to be looked at in full.
local function first_lease(token, message, packed_worker, oldest)
  -- find, plain and from there on, compares without making a string.
  if is_regular(token) and byte(token, 3) == 81 and byte(token, 26) == 160 + #message
    and find(token, message, 27, true) == 27 and struct.unpack('>I8', token, 9) >= oldest then
    return '\159\161R' .. char(byte(token, 4) + 1) .. sub(token, 5, 16) .. NOW .. sub(token, 26, -2) .. packed_worker
  end
  return nil
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
        moves().die(id, t, fields[4], fields[6] or '', 'expired', 'deadline_exceeded', 'was not done within its deadline')
      else
        step = 'R' .. t[1]
        if t[1] == 'T' then
          detail = moves().reclaimed_detail(id, t)
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

-- Reads lanes in their order until `limit` tasks are taken, or none is left.
-- Returns how many were not found, and whether the class surely has more.
local function serve(worker, class, limit, out)
  local index, rounds = index_of(class), 0
  while limit > 0 do
    local lane = rounds < 128 and call('ZRANGE', index, 0, 0)[1]
    if not lane then
      return limit, rounds == 128 and SURE
    end
    rounds = rounds + 1
    local key, asked = P .. 'lane:' .. lane, limit
    local entries = read_lane(key, worker, asked)
    if #entries > 0 then
      limit = limit - take(key, entries, worker, out)
    end
    local unread = #entries == asked and (limit > 0 or first_unread(key, entries[asked][1]))
    if not unread then
      unready(lane)
    elseif limit == 0 then
      if call('ZCARD', READY) > 1 then
        local kind, priority, again = parse_lane(lane)
        rescore(lane, kind, score(priority, again, ready_since(unread)))
      end
      return 0, SURE
    end
  end
  return 0, MAYBE
end

-- worker, class, types and limit as the client gave them; `held` is nil or,
-- after an answer was lost, the epochs of what the worker holds, by id.
local function claim_some(worker, class, types, limit, held)
  local out, behind = {}, false
  if limit > 0 and mode ~= 'Closed' then
    -- A full batch of any of them may have left something for this worker behind.
    behind = file_raw(32) == 32
    if not ordinary then
      behind = promote_due('delayed', 16) == 16 or behind
      behind = promote_due('retrying', 16) == 16 or behind
    end
    announce(MAYBE)
    if class ~= 'all' then
      classes().add(class, types)
    end
  end
  if held then
    limit = limit - recovery().hand_back(worker, held, out)
  end
  if mode == 'Running' then
    local missing, more = serve(worker, class, limit, out)
    if behind then
      rings[class] = SURE
    elseif more then
      rings[class] = more
    elseif missing == limit then
      -- Nothing for this class: what was rung so far was for work that is gone.
      redis.pcall('XGROUP', 'SETID', KEYS[2], 'bell', '$')
      redis.pcall('XGROUP', 'SETID', P .. 'wake:' .. class, 'bell', '$')
    end
  end
  return out
end
