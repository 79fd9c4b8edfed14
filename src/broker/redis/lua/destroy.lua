-- Removes the queue and all that it keeps, a bounded step a call.
--
-- KEYS as in every script. The first step takes the policy away, and from then
-- on no client finds the queue. What is left is removed by this and later calls;
-- `meta` goes last, so a removal that was cut off is taken up by the next call.
-- Streams that were adopted stay, without the queue's groups: others know them.
-- What is known of outside effects expires by itself.
-- ARGV[3] owner that asks  ARGV[4] 'empty' to remove only a queue in which nothing is left to do
-- ARGV[5] most tasks or lanes of a step
-- RETURNS {'done'} or {'more'} or {'owned', owner} or {'busy', live tasks, undecided dead letters, raw entries}
local call = redis.call
call('EXISTS', KEYS[1], KEYS[1] .. ':none') -- refused while the slot moves
local P = string.sub(KEYS[1], 1, -7)
local group, limit = ARGV[2], ARGV[5]
local owner, stage = unpack(call('HMGET', P .. 'meta', 'owner', 'deleting'))
if not owner then
  return { 'done' }
elseif owner ~= ARGV[3] then
  return { 'owned', owner }
end

-- Entries of producers that know nothing of Windlass that nobody has read.
local function waiting_raw()
  local info = group_info(KEYS[2], group)
  return info and #call('XRANGE', KEYS[2], '(' .. info['last-delivered-id'], '+', 'COUNT', limit) or 0
end

if not stage then
  if ARGV[4] == 'empty' then
    local live, dead, raw = call('HLEN', P .. 'live'), call('HLEN', P .. 'dead'), waiting_raw()
    if live + dead + raw > 0 then
      return { 'busy', live, dead, raw }
    end
  end
  stage = '0'
  call('DEL', P .. 'none') -- the first write, allowed when memory is full
  call('HSET', P .. 'meta', 'deleting', stage)
  call('UNLINK', KEYS[1])
end

-- What only a task's id leads to. Nothing comes to `live` any more, so the walk ends.
if stage ~= 'lanes' then
  local page = call('HSCAN', P .. 'live', stage, 'COUNT', limit)
  call('DEL', P .. 'none')
  for i = 1, #page[2], 2 do
    call('UNLINK', P .. 'x:' .. page[2][i])
  end
  stage = page[1] == '0' and 'lanes' or page[1]
  call('HSET', P .. 'meta', 'deleting', stage)
  return { 'more' }
end

local lanes = call('SRANDMEMBER', P .. 'lanes', limit)
for _, lane in ipairs(lanes) do
  call('UNLINK', P .. 'lane:' .. lane)
  call('SREM', P .. 'lanes', lane)
end
if #lanes > 0 then
  return { 'more' }
end

for _, class in ipairs(call('HKEYS', P .. 'classes')) do
  call('UNLINK', P .. 'ready:' .. class, P .. 'wake:' .. class)
end
for i = 2, 4 do
  if string.sub(KEYS[i], 1, #P) == P then
    call('UNLINK', KEYS[i])
  else
    call('UNLINK', 'windlass:adopted:' .. KEYS[i])
  end
end
if string.sub(KEYS[2], 1, #P) ~= P then
  redis.pcall('XGROUP', 'DESTROY', KEYS[2], group)
  redis.pcall('XGROUP', 'DESTROY', KEYS[2], 'bell')
end
for _, name in ipairs({
  'alias', 'aliases', 'classes', 'dead', 'delayed', 'discards', 'dlq_pending', 'done', 'events', 'heartbeats', 'idem',
  'fenced', 'lanes+', 'live', 'parked', 'places', 'progress', 'ready', 'retrying', 'reviewed', 'routes', 'stats',
  'wake:all', 'workers', 'meta',
}) do
  call('UNLINK', P .. name)
end
return { 'done' }
