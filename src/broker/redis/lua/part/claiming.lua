-- Leases ready tasks to a worker.
--
-- One long function, because making one costs as much as what many of its
-- steps do. It files raw entries and what is due, then takes the class's lanes
-- in their order until the limit is reached or none is left.
--
-- worker, class, types and limit as the client gave them; `held` is nil or,
-- after an answer was lost, the epochs of what the worker holds, by id.
-- Returns four values a task: id, payload, meta, token.
local function claim_some(worker, class, types, limit, held)
  local out, behind = {}, false
  if limit > 0 and not ordinary and call('ZSCORE', P .. 'fenced', worker) then
    error('FENCED', 0)
  end
  if mode ~= 'Closed' then
    -- A full batch of any of them may have left something for this worker behind. Raw entries are also filed for
    -- who wants nothing: they rang one worker, and if that was this one, they need another.
    if call('XLEN', KEYS[2]) > 0 then
      behind = intake().file_raw(32) == 32
    end
    if limit > 0 and not ordinary then
      behind = due().promote('delayed', 16) == 16 or behind
      behind = due().promote('retrying', 16) == 16 or behind
    end
    announce(MAYBE)
    if limit > 0 and class ~= 'all' then
      places().add_class(class, types)
    end
  end
  if held then
    limit = limit - recovery().hand_back(worker, held, out)
  end
  if mode ~= 'Running' then
    return out
  end

  local index = class == 'all' and READY or READY .. ':' .. class
  local oldest, wanted, rounds, n = now - deadline, limit, 0, #out
  local first_start, oldest_text = '["R",1,' .. now_text .. ',' .. pack(worker), string.format('%.0f', oldest)
  local more = limit <= 0 and MAYBE
  while limit > 0 do
    local lane = rounds < 128 and call('ZRANGE', index, 0, 0)[1]
    if not lane then
      more = rounds == 128 and SURE
      break
    end
    rounds = rounds + 1
    local key, asked = P .. 'lane:' .. lane, limit
    local read = redis.pcall('XREADGROUP', 'GROUP', group, worker, 'COUNT', asked, 'STREAMS', key, '>')
    if read and read.err then
      -- A group that is gone (a flush, a failover) is made again, from the start:
      -- what is still in a lane is queued or running, never done.
      if find(read.err, 'NOGROUP', 1, true) then
        call('XGROUP', 'CREATE', key, group, '0', 'MKSTREAM')
      end
      read = call('XREADGROUP', 'GROUP', group, worker, 'COUNT', asked, 'STREAMS', key, '>')
    end
    local entries = read and read[1][2] or {}
    if #entries > 0 then
      local ids, sets, drop = {}, {}, {}
      for i = 1, #entries do
        ids[i] = entries[i][2][1]
      end
      local tokens = call('HMGET', LIVE, unpack(ids))
      for i = 1, #entries do
        local id, message, fields, old = ids[i], entries[i][1], entries[i][2], tokens[i]
        local token, step, detail
        local created = 28 + #message
        if old and find(old, '["Q",0,', 1, true) == 1 and find(old, ',"","', 21, true) == 21
          and find(old, message, 26, true) == 26 and find(old, ',0,0,0,', created + 13, true) == created + 13
          and #oldest_text == 13 and sub(old, created, created + 12) >= oldest_text then
          -- Queued, and never claimed before. (find, plain and from there on,
          -- compares without making a string; times of one length compare as texts.)
          step, token = 'RQ', first_start .. sub(old, 24)
        else
          local t = old and unpack_token(old)
          if not t or t[5] ~= message then
            drop[#drop + 1] = message
          elseif t[1] == 'R' then
            -- The group was made again under a worker that still holds the lease.
            call('XCLAIM', key, group, t[4], 0, message, 'JUSTID')
          elseif t[6] < oldest then
            drop[#drop + 1] = message
            moves().die(id, t, fields[2], fields[4] or '', 'expired', 'deadline_exceeded',
              'was not done within its deadline')
          else
            step = 'R' .. t[1]
            if t[1] == 'T' then
              detail = moves().reclaimed_detail(id, t)
            end
            t[1], t[2], t[3], t[4] = 'R', t[2] + 1, now, worker
            token = pack(t)
          end
        end
        if token then
          sets[#sets + 1] = id
          sets[#sets + 1] = token
          out[n + 1], out[n + 2], out[n + 3], out[n + 4] = id, fields[2], fields[4] or '', token
          n, limit = n + 4, limit - 1
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
      if #sets > 0 then
        call('HSET', LIVE, unpack(sets))
      end
    end

    -- What is left of the lane decides where it stands.
    -- (The last entry is found at once; the first unread one is looked for.)
    local unread = #entries == asked
      and (limit > 0 or call('XREVRANGE', key, '+', '(' .. entries[asked][1], 'COUNT', 1)[1])
    if not unread then
      if ordinary then
        call('ZREM', READY, lane)
      else
        places().unready(lane)
      end
      more = MAYBE
    elseif limit == 0 then
      if call('ZCARD', READY) > 1 then
        local kind, priority, again = places().parse_lane(lane)
        local first = places().first_unread(key, entries[asked][1])
        places().rescore(lane, kind, score(priority, again, places().ready_since(first)))
      end
      more = SURE
    end
  end

  if behind then
    rings[class] = SURE
  elseif limit <= 0 or more == SURE then
    rings[class] = more
  elseif limit == wanted then
    -- Nothing for this class: what was rung so far was for work that is gone.
    redis.pcall('XGROUP', 'SETID', KEYS[2], 'bell', '$')
    redis.pcall('XGROUP', 'SETID', P .. 'wake:' .. class, 'bell', '$')
  end
  return out
end
