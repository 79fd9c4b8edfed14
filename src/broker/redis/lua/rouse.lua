-- Wakes the next sleeper of a class, whatever there is for it, if the queue runs.
--
-- ARGV[3] class
-- RETURNS 1
call('DEL', P .. 'none') -- the first write, allowed when memory is full
rings[ARGV[3]] = SURE
ring()
return 1
