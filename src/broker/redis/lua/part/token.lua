-- A token is a task's record in `live`, a packed array:
--   1 state letter  2 epoch  3 in this state (or ready) since ms
--   4 worker while it runs; else why it runs again or died
--   5 message id in its lane, or ''
--   6 created ms  7 retries  8 crashes  9 releases
--   10 type  11 priority  12 idempotency key  13 tenant  14 trace  15 own retry limit, or -1
--
-- Any transition may unpack and pack it. The three that every task makes
-- (made, claimed, done) splice its bytes instead, which is what keeps them
-- cheap: what a claim changes stands first, and what a task is born with last.
-- While the counters are below 128, fields 1 to 3 take 13 bytes and 6 to 9 take 12.
local byte, sub, char, find = string.byte, string.sub, string.char, string.find
local pack, unpack_token = cmsgpack.pack, cmsgpack.unpack
local NOW = pack(now)

-- A text as it is packed.
local function packed(text)
  return #text < 32 and char(160 + #text) .. text or pack(text)
end
