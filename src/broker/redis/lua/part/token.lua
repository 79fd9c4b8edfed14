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
local byte, sub, char = string.byte, string.sub, string.char
local pack, unpack_token = cmsgpack.pack, cmsgpack.unpack
local NOW = pack(now)

-- A text as it is packed.
local function packed(text)
  return #text < 32 and char(160 + #text) .. text or pack(text)
end

-- Whether the first seven fields stand where they usually do.
local function is_regular(token)
  local epoch, retries, crashes, releases, mark = byte(token, 4, 8)
  return mark == 207 and epoch < 127 and retries < 128 and crashes < 128 and releases < 128, epoch, retries, crashes + releases
end

-- Fields 9 to 14 of a task, as they are packed.
local function packed_traits(kind, priority, key, tenant, trace, limit)
  return sub(pack({ kind, priority, key, tenant, trace, limit }), 2)
end

-- The token of a new task.
local function new_token(letter, message, traits)
  return '\159\161' .. letter .. '\0\0\0\0' .. NOW .. NOW .. packed(message) .. traits .. '\160'
end

-- The token of a queued task that a worker claims for the first time, or nil
-- if it is not such a one and has to be looked at in full.
local function first_lease(token, message, packed_worker, oldest)
  -- find, plain and from there on, compares without making a string.
  if is_regular(token) and byte(token, 3) == 81 and byte(token, 26) == 160 + #message
    and string.find(token, message, 27, true) == 27 and struct.unpack('>I8', token, 9) >= oldest then
    return '\159\161R' .. char(byte(token, 4) + 1) .. sub(token, 5, 16) .. NOW .. sub(token, 26, -2) .. packed_worker
  end
  return nil
end

-- What finishing a task needs of a running one's token:
-- message, traits (type, priority, key, tenant, …), epoch, retries, whether it has extras.
local traits_seen = {}
local function read_running(token, packed_worker)
  local regular, epoch, retries, others = is_regular(token)
  local length = byte(token, 26) - 160
  if regular and length < 32 and string.find(token, packed_worker, -#packed_worker, true) then
    local middle = sub(token, 27 + length, -#packed_worker - 1)
    local traits = traits_seen[middle]
    if not traits then
      traits = unpack_token('\150' .. middle)
      traits_seen[middle] = traits
    end
    return sub(token, 27, 26 + length), traits, epoch, retries, retries + others > 0
  end
  local t = unpack_token(token)
  return t[8], { t[9], t[10], t[11], t[12], t[13], t[14] }, t[2], t[3], true
end
