-- Leases ready tasks to a worker.
--
-- ARGV[3] worker  ARGV[4] class  ARGV[5] its types, comma-separated  ARGV[6] how many
-- ARGV[7] '' or, after an answer was lost, 'recover'; what it holds follows: id, epoch, …
-- RETURNS {mode, {id, payload, meta, token, …}}
call('DEL', P .. 'none') -- the first write, allowed when memory is full
local held
if ARGV[7] == 'recover' then
  held = {}
  for i = 8, #ARGV, 2 do
    held[ARGV[i]] = tonumber(ARGV[i + 1])
  end
end
local out = claim_some(ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6]), held)
flush_moves()
ring()
return { mode, out }
