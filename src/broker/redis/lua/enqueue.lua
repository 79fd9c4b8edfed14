-- Takes new tasks: all of them, or none.
--
-- ARGV[3] number of tasks, then for each 4 values: id, payload, meta, and packed
--   {type, priority or -1, due ('', '+ms from now' or '@ms'), idempotency key, tenant, trace,
--   own retry limit or -1, content hash or ''}, which tasks of the same kind have in common
-- RETURNS {'ok', two letters a task, ids of tasks that were known} where the
--   letters are + for made or = for known, and the state;
--   or {'closed'}, {'outbox'}, {'hash'} (send content hashes),
--   or {'invalid', task number, what, detail}
--
-- The first write is an XADD, HSET or SADD: refused when memory is full.
if mode == 'Closed' then
  return { 'closed' }
end
local default, payload_bytes, lanes_max = head[8], head[9], head[12]
local by_content, required = head[10] == 'ContentHash', head[11] == 'Required'
if recording and call('XLEN', P .. 'events') >= head[13] then
  return { 'outbox' }
end

-- The traits of tasks, by how they came; or nil, what is wrong, and a detail.
local traits_seen, lanes_checked, lanes_room = {}, {}, nil
local function read_traits(words, payload)
  local kind, priority, word, key, tenant, trace, limit, hash = unpack(cmsgpack.unpack(words))
  priority = priority == -1 and default or priority
  if priority < priority_min or priority > priority_max then
    return nil, 'priority', priority_min .. ' to ' .. priority_max
  end
  if #payload > payload_bytes then
    return nil, 'payload', head[9]
  end
  if by_content then
    if hash == '' then
      return nil, 'hash', ''
    end
    key = hash
  end
  if required and key == '' then
    return nil, 'key', ''
  end
  local due = now
  if word ~= '' then
    due = tonumber(sub(word, 2)) + (sub(word, 1, 1) == '+' and now or 0)
    if due > now + deadline then
      return nil, 'due', head[6]
    end
  end
  local found = traits(kind, priority, due, key, tenant, trace, limit)
  if not lanes_checked[found.lane] then
    lanes_checked[found.lane] = true
    if call('SISMEMBER', P .. 'lanes', found.lane) == 0 then
      lanes_room = (lanes_room or lanes_max - first_lanes()) - 1
      if lanes_room < 0 then
        return nil, 'lanes', head[12]
      end
    end
  end
  traits_seen[words] = found
  return found
end

local n, ids, kinds = tonumber(ARGV[3]), {}, {}
for i = 1, n do
  local at = i * 4
  local found, what, detail = traits_seen[ARGV[at + 3]], nil, nil
  if not found then
    found, what, detail = read_traits(ARGV[at + 3], ARGV[at + 1])
  elseif #ARGV[at + 1] > payload_bytes then
    what, detail = 'payload', head[9]
  end
  if what == 'hash' then
    return { 'hash' }
  elseif what then
    return { 'invalid', i, what, detail }
  end
  ids[i], kinds[i] = ARGV[at], found
end

local live, done = call('HMGET', LIVE, unpack(ids)), call('HMGET', P .. 'done', unpack(ids))
local letters, known, made = {}, {}, {}
for i = 1, n do
  local id, t = ids[i], kinds[i]
  local first = (live[i] or done[i] or made[id]) and id
  if not first and t.key ~= '' then
    first = made[t.tenant .. '\0' .. t.key] or holder_of(t.tenant, t.key)
  end
  if first then
    local state = made[first]
    if not state then
      local token = call('HGET', LIVE, first)
      state = token and unpack_token(token)[1] or sub(call('HGET', P .. 'done', first), 1, 1)
    end
    letters[i] = '=' .. state
    known[#known + 1] = first
  else
    local state = create(id, ARGV[i * 4 + 1], ARGV[i * 4 + 2], t)
    letters[i] = state == 'Q' and '+Q' or '+S'
    made[id] = state
    if t.key ~= '' then
      made[t.tenant .. '\0' .. t.key] = id
    end
  end
end
flush_created()
-- Also a write where nothing is new: a client that waits for replicas then
-- waits for what its first try wrote.
count('repeated', #known)
announce(SURE)
flush_moves()
ring()
return { 'ok', table.concat(letters), known }
