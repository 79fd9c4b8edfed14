-- Writes the moves of this script and a person's decision about a dead letter
-- to the outbox, as one entry: neither is there without the other.
local function flush_decision(action, id, epoch, person, reason, new_id)
  if recording then
    call('XADD', P .. 'events', '*', 'at', now_text, 'moves', cmsgpack.pack(moves_made), 'decisions',
      cmsgpack.pack({ { action, id, tonumber(epoch), person, reason, new_id } }))
    if call('XLEN', P .. 'events') == 1 then
      redis.pcall('PUBLISH', 'windlass:notices', P .. 'outbox')
    end
    moves_made, moves_n = {}, 0
  end
end
