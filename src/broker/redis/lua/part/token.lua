-- A token is a task's record in `live`, a packed array:
--   1 state letter  2 epoch  3 retries  4 crashes  5 releases
--   6 created ms  7 in this state (or ready) since ms
--   8 message id in its lane, or ''
--   9 type  10 priority  11 idempotency key  12 tenant  13 trace  14 own retry limit, or -1
--   15 worker while it runs; else why it runs again or died
--
-- Any transition may unpack and pack it. The three that every task makes
-- (made, claimed, done) splice its bytes instead, which is what keeps them
-- cheap: while the four counters are below 128, the first seven fields take 25
-- bytes, the message follows, and the worker stands last.
local byte, sub, char, find = string.byte, string.sub, string.char, string.find
local pack, unpack_token = cmsgpack.pack, cmsgpack.unpack
local NOW = pack(now)

-- A text as it is packed.
local function packed(text)
  return #text < 32 and char(160 + #text) .. text or pack(text)
end

-- Whether the first seven fields stand where they usually do.
local function is_regular(token)
  local epoch, retries, crashes, releases, mark = byte(token, 4, 8)
  return mark == 207 and epoch < 127 and retries < 128 and crashes < 128 and releases < 128, epoch, retries
end
