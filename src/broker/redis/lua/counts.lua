-- The queue in numbers.
--
-- RETURNS {backlog, running, raw entries that are pending, delayed, retrying, dlq pending, dead letters, finished,
--   oldest ready ms or '', workers, outbox, invalid transitions,
--   last heartbeat ms of the most silent worker or '', now ms}
local backlog, running, read_up_to = 0, 0, {}
for _, lane in ipairs(call('SMEMBERS', P .. 'lanes')) do
  local key = P .. 'lane:' .. lane
  local info = workers_group(key)
  local pending = info.pending
  read_up_to[lane] = info['last-delivered-id']
  running = running + pending
  backlog = backlog + call('XLEN', key) - pending
end
local raw_waiting, raw_taken = raw_entries()
backlog = backlog + raw_waiting
-- A ready lane's score is never later than its first task: look at the lanes
-- from the earliest on, until no further one can hold an older task.
local oldest, lanes = '', {}
local scores = call('ZRANGE', READY, 0, -1, 'WITHSCORES')
for i = 1, #scores, 2 do
  lanes[#lanes + 1] = { scores[i], tonumber(scores[i + 1]) % RAN_BEFORE }
end
table.sort(lanes, function(a, b) return a[2] < b[2] end)
for _, lane in ipairs(lanes) do
  if oldest ~= '' and lane[2] >= oldest then
    break
  end
  local entry = places().first_unread(P .. 'lane:' .. lane[1], read_up_to[lane[1]] or '0-0')
  local token = entry and call('HGET', LIVE, entry[2][1])
  local since = token and cjson.decode(token)[3]
  if since and (oldest == '' or since < oldest) then
    oldest = since
  end
end
return {
  backlog, running, raw_taken, call('ZCARD', P .. 'delayed'), call('ZCARD', P .. 'retrying'), call('ZCARD', P .. 'dlq_pending'),
  call('HLEN', P .. 'dead'), call('HLEN', P .. 'done'), oldest, call('ZCARD', P .. 'heartbeats'),
  call('XLEN', P .. 'events'), tonumber(call('HGET', P .. 'stats', 'invalid_transitions') or 0),
  call('ZRANGE', P .. 'heartbeats', 0, 0, 'WITHSCORES')[2] or '', now,
}
