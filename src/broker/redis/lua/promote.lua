-- Moves what is due into its lane, files raw entries, and rings again where
-- work waits: a worker may have died between bell and claim.
--
-- ARGV[3] most tasks of each kind
-- RETURNS {promoted, filed, ms until the next is due, or false}
local limit = tonumber(ARGV[3])
call('DEL', P .. 'none') -- the first write, allowed when memory is full
local filed = mode ~= 'Closed' and intake().file_raw(limit) or 0
local promoted = due().promote('delayed', limit) + due().promote('retrying', limit)
announce(SURE)
-- A ring may have died with the worker that it woke.
rings.all = MAYBE
for _, class in ipairs(call('HKEYS', P .. 'classes')) do
  rings[class] = MAYBE
end
local first_due
for _, name in ipairs({ 'delayed', 'retrying' }) do
  local first = call('ZRANGE', P .. name, 0, 0, 'WITHSCORES')[2]
  if first and (not first_due or tonumber(first) < first_due) then
    first_due = tonumber(first)
  end
end
flush_moves()
ring()
return { promoted, filed, first_due and math.max(0, first_due - now) or false }
