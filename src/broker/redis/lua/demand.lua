-- The work that is there for workers of some types, and who holds how much of it.
--
-- ARGV[3] their types, comma-separated; '' for every type
-- RETURNS {mode, backlog, running, due, {worker, how many it holds, ...}, 1 if any task lives,
--   the task stream's last id}
local covered = nil
for kind in string.gmatch(ARGV[3], '[^,]+') do
  covered = covered or {}
  covered[kind] = true
end
local backlog, running, held, order_of = raw_entries(), 0, {}, {}
for _, lane in ipairs(call('SMEMBERS', P .. 'lanes')) do
  local key = P .. 'lane:' .. lane
  local pending = redis.pcall('XPENDING', key, group)
  local taken = not pending.err and pending[1] or 0
  if not covered or covered[string.match(lane, '^(.+):%d+%+?$')] then
    running = running + taken
    backlog = backlog + call('XLEN', key) - taken
  end
  if taken > 0 then
    for _, row in ipairs(pending[4]) do
      if not held[row[1]] then
        order_of[#order_of + 1] = row[1]
      end
      held[row[1]] = (held[row[1]] or 0) + tonumber(row[2])
    end
  end
end
local holders = {}
for _, worker in ipairs(order_of) do
  holders[#holders + 1], holders[#holders + 2] = worker, held[worker]
end
local due = call('ZCOUNT', P .. 'delayed', '-inf', now) + call('ZCOUNT', P .. 'retrying', '-inf', now)
local last = '0-0'
if call('EXISTS', KEYS[2]) == 1 then
  local info = call('XINFO', 'STREAM', KEYS[2])
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then
      last = info[i + 1]
    end
  end
end
return { mode, backlog, running, due, holders, call('EXISTS', LIVE), last }
