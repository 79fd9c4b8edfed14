-- Renews a worker's leases; also its heartbeat.
--
-- ARGV[3] worker  ARGV[4] number of leases, then for each: id, token
-- RETURNS a letter a lease: R renewed, L lost, c cancelled
--
-- A lease is renewed only while the task's record is still the one that the
-- claim wrote: what was reclaimed is never stolen back.
local worker, n = ARGV[3], tonumber(ARGV[4])
local answers, renew, ids = {}, {}, {}
call('DEL', P .. 'none') -- the first write: heartbeats go on when memory is full
if call('HEXISTS', P .. 'workers', worker) == 1 then
  call('ZADD', P .. 'heartbeats', now, worker)
end
for i = 1, n do
  ids[i] = ARGV[3 + i * 2]
end
local tokens = n > 0 and call('HMGET', LIVE, unpack(ids)) or {}
for i = 1, n do
  local t = tokens[i] == ARGV[4 + i * 2] and cjson.decode(tokens[i])
  if t and t[4] == worker then
    local key = P .. 'lane:' .. lane_of(t)
    renew[key] = renew[key] or {}
    table.insert(renew[key], t[5])
    answers[i] = 'R'
  else
    local finished = not tokens[i] and call('HGET', P .. 'done', ids[i])
    answers[i] = finished and string.sub(finished, 1, 1) == 'c' and 'c' or 'L'
  end
end
for key, messages in pairs(renew) do
  local wanted = #messages
  messages[wanted + 1] = 'JUSTID'
  if injected then
    messages[wanted + 2], messages[wanted + 3] = 'TIME', now
  end
  local claimed = redis.pcall('XCLAIM', key, group, worker, 0, unpack(messages))
  if claimed.err or #claimed < wanted then
    leases().put_back(key, worker, { unpack(messages, 1, wanted) })
  end
end
return table.concat(answers)
