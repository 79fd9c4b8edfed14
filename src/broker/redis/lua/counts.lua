-- The queue in numbers.
--
-- RETURNS {backlog, running, delayed, retrying, dlq pending, dead letters, finished,
--   oldest ready ms or '', workers, outbox, invalid transitions}
local function group_info(key)
  local groups = redis.pcall('XINFO', 'GROUPS', key)
  if not groups.err then
    for _, info in ipairs(groups) do
      local c = {}
      for i = 1, #info, 2 do
        c[info[i]] = info[i + 1]
      end
      if c.name == group then
        return c
      end
    end
  end
  return { pending = 0, ['last-delivered-id'] = '0-0' }
end
local backlog, running = 0, 0
for _, lane in ipairs(call('SMEMBERS', P .. 'lanes')) do
  local key = P .. 'lane:' .. lane
  local pending = group_info(key).pending
  running = running + pending
  backlog = backlog + call('XLEN', key) - pending
end
-- Raw entries: the lag where the server knows it, else counted. An adopted
-- stream may hold history, so its length says nothing.
if call('EXISTS', KEYS[2]) == 1 then
  local info = group_info(KEYS[2])
  local lag = info.lag
  if not lag then
    lag = #call('XRANGE', KEYS[2], '(' .. info['last-delivered-id'], '+', 'COUNT', 1000)
  end
  backlog = backlog + lag
end
local oldest = ''
local lanes = call('ZRANGE', READY, 0, -1, 'WITHSCORES')
for i = 2, #lanes, 2 do
  local since = tonumber(lanes[i]) % RAN_BEFORE
  if oldest == '' or since < oldest then
    oldest = since
  end
end
return {
  backlog, running, call('ZCARD', P .. 'delayed'), call('ZCARD', P .. 'retrying'), call('ZCARD', P .. 'dlq_pending'),
  call('HLEN', P .. 'dead'), call('HLEN', P .. 'done'), oldest, call('ZCARD', P .. 'heartbeats'),
  call('XLEN', P .. 'events'), tonumber(call('HGET', P .. 'stats', 'invalid_transitions') or 0),
}
