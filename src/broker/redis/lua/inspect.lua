-- Says how the queue stands, against how it was provisioned. Writes nothing.
--
-- KEYS as in every script. This one also answers where there is no policy.
-- ARGV[3] … names of the policy's fields
-- RETURNS {owner or '', digest of those fields, 1 if the groups on the task stream are there, 1 if it is being removed}.
--   Where somebody else has taken over a stream that the queue adopted, the owner is that one.
-- It has no guard against a slot that moves: what a read finds then is found again, and writing has the guard.
local call = redis.call
local P = string.sub(KEYS[1], 1, -7)
local names = {}
for i = 3, #ARGV do
  names[#names + 1] = ARGV[i]
end
local parts = {}
for i, value in ipairs(call('HMGET', KEYS[1], unpack(names))) do
  value = value or ''
  parts[i] = #value .. ':' .. value
end
local found = 0
local groups = redis.pcall('XINFO', 'GROUPS', KEYS[2])
if not groups.err then
  for _, info in ipairs(groups) do
    for i = 1, #info, 2 do
      if info[i] == 'name' and (info[i + 1] == ARGV[2] or info[i + 1] == 'bell') then
        found = found + 1
      end
    end
  end
end
local owner, removal = unpack(call('HMGET', P .. 'meta', 'owner', 'deleting'))
for i = 2, 4 do
  if owner and string.sub(KEYS[i], 1, #P) ~= P then
    local holder = call('GET', 'windlass:adopted:' .. KEYS[i])
    owner = holder and holder ~= owner and holder or owner
  end
end
return { owner or '', redis.sha1hex(table.concat(parts)), found == 2 and 1 or 0, removal and 1 or 0 }
