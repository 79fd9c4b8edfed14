-- Keeps how far an attempt has come.
--
-- ARGV[3] id  ARGV[4] token  ARGV[5] progress
-- RETURNS R kept, L the lease is lost, c the task was cancelled
--
-- `progress` goes with the task: every way to its end removes its field. The
-- first write is one that a full Redis refuses: nothing is drained by it.
local id = ARGV[3]
local token = call('HGET', LIVE, id)
if token == ARGV[4] then
  call('HSET', P .. 'progress', id, ARGV[5])
  return 'R'
end
local finished = not token and call('HGET', P .. 'done', id)
return finished and string.sub(finished, 1, 1) == 'c' and 'c' or 'L'
