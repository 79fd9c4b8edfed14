-- Takes new tasks: all of them, or none.
--
-- ARGV[3] number of tasks, then for each 6 values:
--   id, type, priority or '', payload, meta, and '' or, packed,
--   {due ('', '+ms from now' or '@ms'), idempotency key, tenant, trace, own retry limit or -1, content hash or ''}
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

local NOTHING = { '', '', '', '', -1, '' }
local n, ids, priorities, options, dues, lanes_checked = tonumber(ARGV[3]), {}, {}, {}, {}, {}
local lanes_room
for i = 1, n do
  local at = i * 6 - 2
  local kind, priority, special = ARGV[at + 1], ARGV[at + 2], ARGV[at + 5]
  priority = priority == '' and default or tonumber(priority)
  if priority < priority_min or priority > priority_max then
    return { 'invalid', i, 'priority', priority_min .. ' to ' .. priority_max }
  end
  if #ARGV[at + 3] > payload_bytes then
    return { 'invalid', i, 'payload', head[9] }
  end
  local option = special == '' and NOTHING or unpack_token(special)
  if by_content then
    if option[6] == '' then
      return { 'hash' }
    end
    option[2] = option[6]
  end
  if required and option[2] == '' then
    return { 'invalid', i, 'key', '' }
  end
  if option[1] ~= '' then
    local due = tonumber(sub(option[1], 2)) + (sub(option[1], 1, 1) == '+' and now or 0)
    if due > now + deadline then
      return { 'invalid', i, 'due', head[6] }
    end
    dues[i] = due
  end
  local lane = first_lane(kind, priority)
  if not lanes_checked[lane] then
    lanes_checked[lane] = true
    if call('SISMEMBER', P .. 'lanes', lane) == 0 then
      lanes_room = (lanes_room or lanes_max - first_lanes()) - 1
      if lanes_room < 0 then
        return { 'invalid', i, 'lanes', head[12] }
      end
    end
  end
  ids[i], priorities[i], options[i] = ARGV[at], priority, option
end

local live, done = call('HMGET', LIVE, unpack(ids)), call('HMGET', P .. 'done', unpack(ids))
local letters, known, made = {}, {}, {}
for i = 1, n do
  local id, option = ids[i], options[i]
  local key, tenant = option[2], option[3]
  local first = (live[i] or done[i] or made[id]) and id
  if not first and key ~= '' then
    first = made[tenant .. '\0' .. key] or holder_of(tenant, key)
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
    local at = i * 6 - 2
    local state = create(id, ARGV[at + 1], priorities[i], dues[i] or now, key, tenant, option[4], option[5],
      ARGV[at + 3], ARGV[at + 4])
    letters[i] = state == 'Q' and '+Q' or '+S'
    made[id] = state
    if key ~= '' then
      made[tenant .. '\0' .. key] = id
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
