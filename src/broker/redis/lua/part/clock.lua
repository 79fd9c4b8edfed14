-- After a restart or a failover the clock may be another one: for a heartbeat
-- period nothing is judged by it.
local function clock_is_new(run_id)
  local known = call('HMGET', P .. 'stats', 'run_id', 'run_since')
  if known[1] ~= run_id then
    known[2] = known[1] and now or 0
    call('HSET', P .. 'stats', 'run_id', run_id, 'run_since', known[2])
  end
  return now < tonumber(known[2]) + tonumber(call('HGET', KEYS[1], 'heartbeat'))
end
