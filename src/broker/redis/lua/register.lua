-- Adds a worker to the registry; it supersedes the one that was in its place.
--
-- ARGV[3] worker  ARGV[4] place (pod UID and container) or ''  ARGV[5] what it tells of itself
-- ARGV[6] class  ARGV[7] its types, comma-separated
-- RETURNS {superseded worker or '', {requeued ids}, 1 if it must be called again for the rest}
local worker, place = ARGV[3], ARGV[4]
call('DEL', P .. 'none') -- the first write, allowed when memory is full
if not ordinary and call('ZSCORE', P .. 'fenced', worker) then
  return redis.error_reply('FENCED')
end
local before = place ~= '' and call('HGET', P .. 'places', place)
local requeued, more = {}, false
if before and before ~= worker then
  local _
  requeued, _, more = evict(before, 'superseded', true, 20)
  if not more then
    forget(before)
  end
end
if not more then
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
return { before and before ~= worker and before or '', requeued, more and 1 or 0 }
