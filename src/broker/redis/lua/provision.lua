-- Makes the queue if it is not there, and writes its policy.
--
-- KEYS as in every script. This one runs before there is a policy.
-- ARGV[3] owner  ARGV[4] 'force' to take over, or '<' and the owner to take over from, or '=' and the spec that must
-- still be in force
-- then policy fields and values
-- RETURNS {'ok'} or {'owned', owner} or {'version', version} or {'type', key that is no stream}
--   or {'changed'} (the spec in force is another one)
local call = redis.call
call('EXISTS', KEYS[1], KEYS[1] .. ':none') -- refused while the slot moves
local P = string.sub(KEYS[1], 1, -7)
local group = ARGV[2]
local version, owner = unpack(call('HMGET', P .. 'meta', 'version', 'owner'))
if version and math.abs(tonumber(version) - 1) > 1 then
  return { 'version', version }
end
-- Who may not have what somebody else has.
local function is_taken(holder)
  return holder and holder ~= ARGV[3] and ARGV[4] ~= 'force' and ARGV[4] ~= '<' .. holder
end
if is_taken(owner) then
  return { 'owned', owner }
end
if string.sub(ARGV[4], 1, 1) == '=' and call('HGET', KEYS[1], 'spec') ~= string.sub(ARGV[4], 2) then
  return { 'changed' }
end
-- Two queues may adopt one stream, so each adopted stream has its own record of who has it.
local adopted = {}
for i = 2, 4 do
  local kind = call('TYPE', KEYS[i]).ok
  if kind ~= 'none' and kind ~= 'stream' then
    return { 'type', KEYS[i] }
  end
  if string.sub(KEYS[i], 1, #P) ~= P then
    local record = 'windlass:adopted:' .. KEYS[i]
    local holder = call('GET', record)
    if is_taken(holder) then
      return { 'owned', holder }
    end
    adopted[#adopted + 1] = record
  end
end
call('DEL', P .. 'none') -- the first write, allowed when memory is full
-- With the names, so that whoever knows the queue alone finds what it adopted.
call('HSET', P .. 'meta', 'version', version or 1, 'owner', ARGV[3], 'task', KEYS[2], 'result', KEYS[3], 'dlq', KEYS[4],
  'group', group)
call('HDEL', P .. 'meta', 'deleting')
for _, record in ipairs(adopted) do
  call('SET', record, ARGV[3])
end

-- Where the group of workers on the task stream has got to is kept, so that a
-- group that is lost starts there again and not at the beginning of history.
local position = group_info(KEYS[2], group)
if position then
  call('HSET', P .. 'meta', 'task_floor', position['last-delivered-id'])
elseif not call('HGET', P .. 'meta', 'task_floor') and not call('HGET', P .. 'stats', 'task_floor') then
  call('XGROUP', 'CREATE', KEYS[2], group, '0', 'MKSTREAM')
end -- a group that was there and is gone is made by the next claim, which knows where it stood
redis.pcall('XGROUP', 'CREATE', KEYS[2], 'bell', '$')
redis.pcall('XGROUP', 'CREATE', P .. 'wake:all', 'bell', '$', 'MKSTREAM')

local fields = { 'version', version or 1 }
for i = 5, #ARGV do
  fields[#fields + 1] = ARGV[i]
end
call('HSET', KEYS[1], unpack(fields))

-- Lanes are ordered by the new policy, and sleepers look again.
local p = {}
for i = 1, #fields, 2 do
  p[fields[i]] = fields[i + 1]
end
local RAN_BEFORE = 4398046511104
local indexes = { P .. 'ready' }
local classes = call('HKEYS', P .. 'classes')
for _, class in ipairs(classes) do
  indexes[#indexes + 1] = P .. 'ready:' .. class
end
for _, index in ipairs(indexes) do
  local lanes = call('ZRANGE', index, 0, -1, 'WITHSCORES')
  for i = 1, #lanes, 2 do
    local priority = tonumber(string.match(lanes[i], ':(%d+)%+?$'))
    local rank = p.order == 'HighestFirst' and p.priority_max - priority or priority - p.priority_min
    rank = math.max(0, math.min(127, rank))
    call('ZADD', index, rank * 2 * RAN_BEFORE + tonumber(lanes[i + 1]) % (2 * RAN_BEFORE), lanes[i])
  end
end
if p.mode == 'Running' then
  classes[#classes + 1] = 'all'
  for _, class in ipairs(classes) do
    call('XADD', P .. 'wake:' .. class, 'MAXLEN', '1', '*', 'r', '1')
  end
end
return { 'ok' }
