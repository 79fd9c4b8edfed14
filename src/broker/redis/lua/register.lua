-- Adds a worker to the registry; it supersedes the one that was in its place.
--
-- ARGV[3] worker  ARGV[4] place (pod UID and container) or ''  ARGV[5] what it tells of itself
-- ARGV[6] class  ARGV[7] its types, comma-separated
-- ARGV[8] whose tasks the call before took, or ''  ARGV[9] where that one ended, or '0'
-- RETURNS {superseded worker or '', {requeued ids}, where to go on, or '' if nothing is left to do}
local worker, place = ARGV[3], ARGV[4]
call('DEL', P .. 'none') -- the first write, allowed when memory is full
if not ordinary and call('ZSCORE', P .. 'fenced', worker) then
  return redis.error_reply('FENCED')
end
local before = place ~= '' and call('HGET', P .. 'places', place)
local requeued, rest = {}, nil
if before and before ~= worker then
  local _, stays
  -- Of somebody else, who came in between, all lanes are to be seen.
  requeued, _, rest, _, stays = evict(before, 'superseded', true, 20, '', before == ARGV[8] and ARGV[9] or '0')
  if not rest and not stays then
    forget(before)
  end
end
if not rest then
  call('HSET', P .. 'workers', worker, cmsgpack.pack({ place, now, ARGV[5] }))
  call('ZADD', P .. 'heartbeats', now, worker)
  redis.pcall('PUBLISH', 'windlass:notices', P .. 'workers')
  if place ~= '' then
    call('HSET', P .. 'places', place, worker)
  end
  if ARGV[6] ~= 'all' then
    places().add_class(ARGV[6], ARGV[7])
  end
end
announce(SURE)
flush_moves()
ring()
return { before and before ~= worker and before or '', requeued, rest or '' }
