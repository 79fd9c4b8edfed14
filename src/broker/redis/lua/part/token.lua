-- A token is a task's record in `live`, a JSON array:
--   1 state letter  2 epoch  3 in this state (or ready) since ms
--   4 worker while it runs; else why it runs again or died
--   5 message id in its lane, or ''
--   6 created ms  7 retries  8 crashes  9 releases
--   10 type  11 priority  12 idempotency key  13 tenant  14 trace  15 own retry limit, or -1
--
-- Text, because results and dead letters carry it: whoever reads those streams
-- may take every field for UTF-8.
--
-- Any transition may decode and encode it. The three that every task makes
-- (made, claimed, done) splice its bytes instead, which is what keeps them
-- cheap: what a claim changes stands first, and what a task is born with last.
-- While the epoch has one digit and a time thirteen, as they have until 2286,
-- field 3 ends at byte 20.
local byte, sub, find = string.byte, string.sub, string.find
local pack, unpack_token = cjson.encode, cjson.decode
