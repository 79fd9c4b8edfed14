-- The queue in numbers.
--
-- RETURNS {backlog, running, raw entries that are pending, delayed, retrying, dlq pending, dead letters, finished,
--   oldest ready ms or '', workers, outbox, invalid transitions,
--   last heartbeat ms of the most silent worker or '', now ms}
local backlog, running = 0, 0
for _, lane in ipairs(call('SMEMBERS', P .. 'lanes')) do
  local key = P .. 'lane:' .. lane
  local pending = redis.pcall('XPENDING', key, group)
  pending = not pending.err and pending[1] or 0
  running = running + pending
  backlog = backlog + call('XLEN', key) - pending
end
local raw_waiting, raw_taken = raw_entries()
backlog = backlog + raw_waiting
-- A ready lane's score is never later than its first task: look at the lanes
-- from the earliest on, until no further one can hold an older task. (Numbers are
-- sorted much faster than tables: there may be a thousand lanes.)
local oldest, times, lanes_at = '', {}, {}
local scores = call('ZRANGE', READY, 0, -1, 'WITHSCORES')
for i = 1, #scores, 2 do
  local time = tonumber(scores[i + 1]) % RAN_BEFORE
  if not lanes_at[time] then
    lanes_at[time] = {}
    times[#times + 1] = time
  end
  table.insert(lanes_at[time], scores[i])
end
table.sort(times)
for _, time in ipairs(times) do
  for _, lane in ipairs(lanes_at[time]) do
    if oldest ~= '' and time >= oldest then
      break
    end
    local key = P .. 'lane:' .. lane
    local entry = places().first_unread(key, workers_group(key)['last-delivered-id'])
    local token = entry and call('HGET', LIVE, entry[2][1])
    local since = token and cjson.decode(token)[3]
    if since and (oldest == '' or since < oldest) then
      oldest = since
    end
  end
end
return {
  backlog, running, raw_taken, call('ZCARD', P .. 'delayed'), call('ZCARD', P .. 'retrying'), call('ZCARD', P .. 'dlq_pending'),
  call('HLEN', P .. 'dead'), call('HLEN', P .. 'done'), oldest, call('ZCARD', P .. 'heartbeats'),
  call('XLEN', P .. 'events'), tonumber(call('HGET', P .. 'stats', 'invalid_transitions') or 0),
  call('ZRANGE', P .. 'heartbeats', 0, 0, 'WITHSCORES')[2] or '', now,
}
