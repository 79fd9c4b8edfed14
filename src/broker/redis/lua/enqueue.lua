-- Takes new tasks: all of them, or none.
--
-- ARGV[3] number of tasks, then for each 11 values:
--   id, type, priority or '', due ('', '+ms from now' or '@ms'), idempotency key,
--   tenant, trace, own retry limit or -1, payload, meta, content hash or ''
-- RETURNS {'ok', two letters a task, ids of tasks that were known} where the
--   letters are + for made or = for known, and the state;
--   or {'closed'}, {'outbox'}, {'hash'} (send content hashes),
--   or {'invalid', task number, what, detail}
--
-- The first write is an XADD, HSET or SADD: refused when memory is full.
if mode == 'Closed' then
  return { 'closed' }
end
local row = call('HMGET', KEYS[1], 'priority_default', 'payload_bytes', 'idempotency_source',
  'idempotency_requirement', 'lanes', 'outbox_entries')
local default, payload_bytes, lanes_max = tonumber(row[1]), tonumber(row[2]), tonumber(row[5])
local by_content, required = row[3] == 'ContentHash', row[4] == 'Required'
if recording and call('XLEN', P .. 'events') >= tonumber(row[6]) then
  return { 'outbox' }
end

local n, ids, tasks, new_lanes = tonumber(ARGV[3]), {}, {}, {}
local lanes_room
for i = 1, n do
  local at = 4 + (i - 1) * 11
  local task = { id = ARGV[at], kind = ARGV[at + 1], key = ARGV[at + 4], tenant = ARGV[at + 5], at = at }
  local priority, due = ARGV[at + 2], ARGV[at + 3]
  task.priority = priority == '' and default or tonumber(priority)
  if task.priority < priority_min or task.priority > priority_max then
    return { 'invalid', i, 'priority', priority_min .. ' to ' .. priority_max }
  end
  if #ARGV[at + 8] > payload_bytes then
    return { 'invalid', i, 'payload', row[2] }
  end
  if by_content then
    task.key = ARGV[at + 10]
    if task.key == '' then
      return { 'hash' }
    end
  end
  if required and task.key == '' then
    return { 'invalid', i, 'key', '' }
  end
  task.due = now
  if due ~= '' then
    task.due = tonumber(string.sub(due, 2)) + (string.sub(due, 1, 1) == '+' and now or 0)
    if task.due > now + deadline then
      return { 'invalid', i, 'due', head[7] }
    end
  end
  local lane = task.kind .. ':' .. task.priority
  if new_lanes[lane] == nil then
    new_lanes[lane] = call('SISMEMBER', P .. 'lanes', lane) == 0
    if new_lanes[lane] then
      lanes_room = (lanes_room or lanes_max - call('SCARD', P .. 'lanes')) - 1
      if lanes_room < 0 then
        return { 'invalid', i, 'lanes', row[5] }
      end
    end
  end
  ids[i], tasks[i] = task.id, task
end

local live, done = call('HMGET', LIVE, unpack(ids)), call('HMGET', P .. 'done', unpack(ids))
local letters, known, made = {}, {}, {}
for i, task in ipairs(tasks) do
  local first = (live[i] or done[i] or made[task.id]) and task.id
  if not first and task.key ~= '' then
    first = made[task.tenant .. '\0' .. task.key] or holder_of(task.tenant, task.key)
  end
  if first then
    local state = made[first]
    if not state then
      local token = call('HGET', LIVE, first)
      state = token and cmsgpack.unpack(token)[1] or string.sub(call('HGET', P .. 'done', first), 1, 1)
    end
    letters[i] = '=' .. state
    known[#known + 1] = first
  else
    local at = task.at
    local state = create(task.id, task.kind, task.priority, task.due, task.key, task.tenant, ARGV[at + 6],
      tonumber(ARGV[at + 7]), ARGV[at + 8], ARGV[at + 9])
    letters[i] = '+' .. state
    made[task.id] = state
    if task.key ~= '' then
      made[task.tenant .. '\0' .. task.key] = task.id
    end
  end
end
flush_created()
announce()
flush_moves()
ring()
return { 'ok', table.concat(letters), known }
