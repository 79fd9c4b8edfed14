-- Moves what is due into its lane, files raw entries, and rings again where
-- work waits: a worker may have died between bell and claim.
--
-- ARGV[3] most tasks of each kind
-- RETURNS {promoted, filed, next due ms or ''}
--
-- The first write is the XREADGROUP of the intake, or a DEL: a full Redis can always drain.
local limit = tonumber(ARGV[3])
local filed = 0
if mode ~= 'Closed' then
  filed = file_raw(limit)
else
  call('DEL', P .. 'none')
end
local promoted = promote_due('delayed', limit) + promote_due('retrying', limit)
announce()
rings.all = true
for _, class in ipairs(call('HKEYS', P .. 'classes')) do
  rings[class] = true
end
local due = ''
for _, name in ipairs({ 'delayed', 'retrying' }) do
  local first = call('ZRANGE', P .. name, 0, 0, 'WITHSCORES')[2]
  if first and (due == '' or tonumber(first) < tonumber(due)) then
    due = first
  end
end
flush_moves()
ring()
return { promoted, filed, due }
