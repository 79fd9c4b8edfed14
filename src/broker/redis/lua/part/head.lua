-- Head of every script.
--
-- KEYS[1] policy  KEYS[2] task stream  KEYS[3] result stream  KEYS[4] dead-letter stream
-- ARGV[1] time in ms, 0 for the server's own  ARGV[2] consumer group of workers
--
-- The other keys of the queue are derived from the policy's key: they carry
-- the same hash tag. While a slot of a Redis Cluster moves, EXISTS on several
-- keys of which one is missing (policy:none always is) is refused on both
-- sides, before anything is written.
--
-- The same question tells whether anything out of the ordinary is there:
-- delayed tasks, retries, classes of workers, raw duplicates. Most calls are
-- spared the look at each.
local call = redis.call
local P = string.sub(KEYS[1], 1, -7)
local ordinary = call('EXISTS', KEYS[1], KEYS[1] .. ':none', P .. 'delayed', P .. 'retrying', P .. 'classes',
  P .. 'aliases') == 1
local head = call('HMGET', KEYS[1], 'version', 'mode', 'events', 'order', 'priority_min', 'priority_max', 'deadline',
  'result_bytes', 'priority_default', 'payload_bytes', 'idempotency_source', 'idempotency_requirement', 'lanes',
  'outbox_entries')
local version, mode, recording = head[1], head[2], head[3] == 'On'
if not version then
  return redis.error_reply('NOQUEUE there is no policy')
elseif version ~= '1' and math.abs(tonumber(version) - 1) > 1 then
  return redis.error_reply('WVERSION ' .. version)
end
local LIVE, PARKED = P .. 'live', P .. 'parked'
local group = ARGV[2]
local now = tonumber(ARGV[1])
local injected = now > 0
if not injected then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local now_text = string.format('%.0f', now)
local order, priority_min, priority_max = head[4], tonumber(head[5]), tonumber(head[6])
local deadline = tonumber(head[7])

-- One field of the policy that only some paths need.
local function policy(name)
  return call('HGET', KEYS[1], name)
end

-- Moves of this script, written to the outbox as one entry.
local moves_made, moves_n = {}, 0
-- `step` is the letters of the states after and before ('-' for none). Where
-- there is more to say, a + follows them, and detail and who gave the task up
-- follow the token; who has it is in the token.
local function emit(step, id, token, detail, worker)
  if recording then
    if detail then
      moves_made[moves_n + 4], moves_made[moves_n + 5] = detail, worker or ''
      step = step .. '+'
    end
    moves_made[moves_n + 1], moves_made[moves_n + 2], moves_made[moves_n + 3] = step, id, token
    moves_n = moves_n + (detail and 5 or 3)
  end
end
local function flush_moves()
  if moves_n > 0 then
    call('XADD', P .. 'events', '*', 'at', now_text, 'moves', cmsgpack.pack(moves_made))
    moves_made, moves_n = {}, 0
  end
end

local function count(name, by)
  if by > 0 then
    call('HINCRBY', P .. 'stats', name, by)
  end
end

-- Tells the leader that something is due sooner than it may expect. A hint: a
-- user without the right to publish must not fail for it.
local function tell_leader()
  redis.pcall('PUBLISH', 'windlass:due', P)
end
