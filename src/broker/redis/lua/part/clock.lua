-- After a restart or a failover the clock may be another one: for a heartbeat
-- period nothing is judged by it. Also since when the server is there, as far as
-- is known; 0 for the first one.
local function clock_of(run_id)
  local known = call('HMGET', P .. 'stats', 'run_id', 'run_since')
  if known[1] ~= run_id then
    known[2] = known[1] and now or 0
    call('HSET', P .. 'stats', 'run_id', run_id, 'run_since', known[2])
  end
  local since = tonumber(known[2])
  return now < since + tonumber(call('HGET', KEYS[1], 'heartbeat')), since
end
