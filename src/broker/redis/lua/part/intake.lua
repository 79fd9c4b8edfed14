-- Module: entries of producers that know nothing of Windlass become tasks.
-- Numbers in them are plain digits.

local function file_all(entries)
  local function is_utf8(s)
    if not string.find(s, '[\128-\255]') then
      return true
    end
    local tail = '[\128-\191]'
    for _, sequence in ipairs({
      '[\194-\223]' .. tail, '\224[\160-\191]' .. tail, '[\225-\236\238\239]' .. tail .. tail, '\237[\128-\159]' .. tail,
      '\240[\144-\191]' .. tail .. tail, '[\241-\243]' .. tail .. tail .. tail, '\244[\128-\143]' .. tail .. tail,
    }) do
      -- A space in its place, so that what stood on both sides does not join up.
      s = string.gsub(s, sequence, ' ')
    end
    return not string.find(s, '[\128-\255]')
  end

  local function one_of(f, ...)
    for _, name in ipairs({ ... }) do
      if f[name] and f[name] ~= '' then
        return f[name]
      end
    end
    return nil
  end

  -- Plain digits, or what stands for a missing number; else nil.
  local function number(word, missing)
    if not word then
      return missing
    end
    return #word <= 15 and string.find(word, '^%d+$') and tonumber(word) or nil
  end

  local function is_text(s, longest)
    return #s <= longest and is_utf8(s) and not string.find(s, '[%z\1-\31\127]')
      and not string.find(s, '\194[\128-\159]')
  end

  -- Everything that was in an entry that could not be read, as JSON.
  local function as_json(f)
    local out = {}
    for name, value in pairs(f) do
      local function plain(s)
        return is_utf8(s) and s or string.gsub(s, '[\128-\255]', function(c)
          return string.format('\\x%02x', string.byte(c))
        end)
      end
      out[plain(name)] = (plain(value))
    end
    return cjson.encode({ fields = out })
  end

  -- What cjson takes and others do not: raw control characters in strings, numbers
  -- in hex, with a plus or zeros before them or without a digit beside the point, and
  -- more than 127 levels. `payload` is what cjson took, so the rest of it is JSON.
  local function is_strict(payload)
    if find(payload, '[%z\1-\8\11\12\14-\31]') then
      return false
    end
    -- A string with a raw tab or newline in it keeps its quotes.
    local bare = string.gsub(string.gsub(payload, '\\.', ''), '"[^"\t\n\r]*"', 's')
    bare = ' ' .. bare .. ' '
    for _, wrong in ipairs({ '["xX]', '[^eE]%+', '[^%d%.eE%+%-]%-?0%d', '[^%d]%.', '%.[^%d]' }) do
      if find(bare, wrong) then
        return false
      end
    end
    local depth = 0
    for opened, closed in string.gmatch(string.gsub(bare, '[^%[%]{}]', ''), '([%[{]+)([%]}]+)') do
      depth = depth + #opened
      if depth > 127 then
        return false
      end
      depth = depth - #closed
    end
    return true
  end

  local function is_json(payload)
    local ok, value = pcall(cjson.decode, payload)
    -- Encoding again finds NaN and infinity, which decoding lets pass.
    return ok and pcall(cjson.encode, value) and is_strict(payload)
  end

  local function is_trace(s)
    return #s <= 128 and not string.find(s, '[^\33-\126]')
  end

  -- Dead on arrival: it has an id, a result and a dead letter like any other, and
  -- keeps what could be read of it.
  local function refuse(id, kind, priority, f, payload, rules, key, tenant, trace, err)
    local kept
    if not payload or payload == '' or not is_utf8(payload) then
      kept = as_json(f)
    elseif #payload <= rules.payload and is_json(payload) then
      kept = payload
    else
      kept = cjson.encode(payload)
    end
    local t = {
      'Q', 0, now, '', '', now, 0, 0, 0, kind, priority,
      rules.source == 'Key' and is_text(key, 512) and key or '', is_text(tenant, 128) and tenant or '',
      is_trace(trace) and trace or '', -1,
    }
    emit('Q-', id, pack(t))
    moves().die(id, t, kept, '', 'permanent', 'invalid_input', err)
    count('created', 1)
  end

  local function by_name(list)
    local f = {}
    for i = 1, #list, 2 do
      f[list[i]] = list[i + 1]
    end
    return f
  end

  local lane, touched_before
  local function file(message, f, rules)
    local id = one_of(f, 'task_id', 'taskId', 'id', 'job_id', 'jobId')
    local kind = one_of(f, 'tool_name', 'toolName', 'type', 'task_type', 'taskType', 'job_type', 'kind') or 'default'
    local payload = f.payload or f.payload_json
    local problem
    if not id or #id > 128 or string.find(id, '[^\33-\126]') then
      problem, id = 'task_id is missing or is not 1 to 128 printable characters', 'raw-' .. message
    end
    if call('HEXISTS', LIVE, id) == 1 or call('HEXISTS', P .. 'done', id) == 1 then
      return
    end
    if #kind > 100 or not string.find(kind, '^%w[%w%._/:%-]*$') then
      problem, kind = problem or 'tool_name may hold letters, digits and . _ / : - only', 'default'
    end
    local priority = number(one_of(f, 'priority'), rules.default)
    if not priority or priority < priority_min or priority > priority_max then
      problem = problem or 'priority must be a whole number from ' .. priority_min .. ' to ' .. priority_max
      priority = rules.default
    end
    if not problem and not payload then
      problem = 'payload is missing'
    end
    if not problem and not is_utf8(payload) then
      problem = 'payload is not UTF-8'
    end
    if not problem and #payload > rules.payload then
      problem = 'payload has ' .. #payload .. ' bytes, more than ' .. rules.payload
    end
    if not problem and not is_json(payload) then
      problem = 'payload is not JSON'
    end
    local key = one_of(f, 'idempotency_key', 'idempotencyKey') or ''
    local tenant = one_of(f, 'tenant_id', 'tenantId') or ''
    local trace = one_of(f, 'trace_id', 'traceId', 'traceparent') or ''
    if not problem and not (is_text(key, 512) and is_text(tenant, 128)) then
      problem = 'idempotency_key or tenant_id is too long or not plain text'
    end
    if not problem and not is_trace(trace) then
      problem = 'trace_id is not 1 to 128 printable characters without spaces'
    end
    local max_retries = number(one_of(f, 'max_retries', 'maxRetries'), -1)
    local delay = number(one_of(f, 'delay_ms', 'delayMs'), 0)
    if not problem and not (max_retries and max_retries <= 1000 and delay and delay <= deadline) then
      problem = 'max_retries or delay_ms is not a number, or not in range'
    end
    if not problem and rules.source == 'ContentHash' then
      key = redis.sha1hex(kind .. '\n' .. payload)
    end
    if not problem and key == '' and rules.requirement == 'Required' then
      problem = 'idempotency_key is missing, and this queue requires one'
    end
    lane = kind .. ':' .. priority
    touched_before = touched[lane]
    if not problem and call('SISMEMBER', P .. 'lanes', lane) == 0 and first_lanes() >= rules.lanes then
      problem = 'the queue has as many lanes (types times priorities) as it may have'
    end
    if problem then
      refuse(id, kind, priority, f, payload, rules, key, tenant, trace, problem)
      return
    end
    if key ~= '' then
      local first = holder_of(tenant, key)
      if first and call('HGET', P .. 'alias', id) == first then
        count('duplicates', 1)
        return
      elseif first then
        local finished = call('HGET', P .. 'done', first)
        call('HSET', P .. 'alias', id, first)
        if finished then
          local entry = call('XRANGE', KEYS[3], string.sub(finished, 2), string.sub(finished, 2))[1]
          if entry then
            entry[2][2] = id
            call('XADD', KEYS[3], '*', 'duplicate_of', first, unpack(entry[2]))
          end
        else
          local known = call('HGET', P .. 'aliases', first)
          known = known and cmsgpack.unpack(known) or {}
          known[#known + 1] = id
          call('HSET', P .. 'aliases', first, cmsgpack.pack(known))
        end
        count('duplicates', 1)
        return
      end
    end
    create(id, payload, '', traits(kind, priority, now + delay, key, tenant, trace, max_retries))
    flush_created()
  end

  local rules = {
    default = head[8], payload = head[9], source = head[10], requirement = head[11],
    lanes = head[12],
  }
  -- One that fails (its lane's key may be no stream) must not hold up those behind it,
  -- nor a claim: it is dead, and its lane is not announced.
  local messages = {}
  for i, entry in ipairs(entries) do
    local f = by_name(entry[2])
    lane = nil
    local ok, problem = pcall(file, entry[1], f, rules)
    if not ok then
      if lane then
        touched[lane] = touched_before
      end
      refuse('raw-' .. entry[1], 'default', rules.default, f, f.payload or f.payload_json, rules, '', '', '',
        'could not be filed: ' .. (type(problem) == 'table' and problem.err or tostring(problem)))
    end
    messages[i] = entry[1]
  end
  call('XACK', KEYS[2], group, unpack(messages))
  call('XDEL', KEYS[2], unpack(messages))
  count('raw', #entries)
end

-- The group is gone. It starts again after what it had delivered, never at the
-- beginning of an adopted stream's history.
local function make_group()
  local at_provision, since = call('HGET', P .. 'meta', 'task_floor') or '0-0', call('HGET', P .. 'stats', 'task_floor')
  local floor = since and not is_earlier(since, at_provision) and since or at_provision
  call('XGROUP', 'CREATE', KEYS[2], group, floor, 'MKSTREAM')
end

-- Files waiting raw entries into their lanes; returns how many. None while the outbox is at
-- its bound, as `enqueue` takes none then: they wait where they are, and `promote` comes for them.
local function file_raw(limit)
  if recording and call('XLEN', P .. 'events') >= head[13] then
    return 0
  end
  local read = redis.pcall('XREADGROUP', 'GROUP', group, 'windlass', 'COUNT', limit, 'STREAMS', KEYS[2], '>')
  if read and read.err then
    if find(read.err, 'NOGROUP', 1, true) then
      make_group()
    end
    read = call('XREADGROUP', 'GROUP', group, 'windlass', 'COUNT', limit, 'STREAMS', KEYS[2], '>')
  end
  if not read then
    return 0
  end
  local entries = read[1][2]
  call('HSET', P .. 'stats', 'task_floor', entries[#entries][1])
  file_all(entries)
  return #entries
end

return { file_all = file_all, file_raw = file_raw }
