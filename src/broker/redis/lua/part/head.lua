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
-- delayed tasks, retries, classes of workers, raw duplicates, reports of
-- progress, workers that are fenced off. Most calls are spared the look at each.
local call, ARGV, KEYS, unpack = redis.call, ARGV, KEYS, unpack
local P = string.sub(KEYS[1], 1, -7)
local ordinary = call('EXISTS', KEYS[1], KEYS[1] .. ':none', P .. 'delayed', P .. 'retrying', P .. 'classes',
  P .. 'aliases', P .. 'progress', P .. 'fenced') == 1
-- What most scripts need of the policy stands packed in one field.
local facts = call('HMGET', KEYS[1], 'version', 'hot')
local version = facts[1]
if not version then
  return redis.error_reply('NOQUEUE there is no policy')
elseif version ~= '1' and math.abs(tonumber(version) - 1) > 1 then
  return redis.error_reply('WVERSION ' .. version)
end
local head = cmsgpack.unpack(facts[2])
local mode, recording, order, priority_min, priority_max, deadline = head[1], head[2], head[3], head[4], head[5], head[6]
local LIVE, PARKED = P .. 'live', P .. 'parked'
local group = ARGV[2]
local now = tonumber(ARGV[1])
local injected = now > 0
if not injected then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local now_text = string.format('%.0f', now)

-- Functions are made anew with every call, and making them is most of what a
-- small call costs. So there are few here; what is rarely needed is in modules,
-- and PUBLISH (which tells the leader that something is to do sooner than it may
-- expect) is written out: a pcall, because a hint must not fail a script.

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
    if call('XLEN', P .. 'events') == 1 then
      redis.pcall('PUBLISH', 'windlass:notices', P .. 'outbox')
    end
    moves_made, moves_n = {}, 0
  end
end

local function count(name, by)
  if by > 0 then
    call('HINCRBY', P .. 'stats', name, by)
  end
end
