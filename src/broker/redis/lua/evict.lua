-- A worker is gone: its tasks come back, and it leaves the registry.
--
-- ARGV[3] worker  ARGV[4] reason  ARGV[5] 'crash' if it counts as one
-- RETURNS {{requeued ids}, {dead ids}, 1 if there may be more}
call('DEL', P .. 'none') -- the first write, allowed when memory is full
local requeued, dead, more = evict(ARGV[3], ARGV[4], ARGV[5] == 'crash', 20)
if not more then
  forget(ARGV[3])
end
announce(SURE)
flush_moves()
ring()
return { requeued, dead, more and 1 or 0 }
