-- A worker is gone: its tasks come back, and it leaves the registry. One that may be running all the same gets no more.
--
-- ARGV[3] worker  ARGV[4] reason  ARGV[5] 'crash' if it counts as one  ARGV[6] what is known of its end, or ''
-- ARGV[7] '0', or where the call before ended
-- RETURNS {{requeued ids}, {dead ids}, where to go on or ''}
call('DEL', P .. 'none') -- the first write, allowed when memory is full
if ARGV[4] == 'pod_force_deleted' then
  fence(ARGV[3]) -- it may go on running
end
local requeued, dead, rest, _, stays = evict(ARGV[3], ARGV[4], ARGV[5] == 'crash', 20, ARGV[6], ARGV[7])
if not rest and not stays then
  forget(ARGV[3])
end
announce(SURE)
flush_moves()
ring()
return { requeued, dead, rest or '' }
