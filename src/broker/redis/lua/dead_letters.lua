-- Dead letters that were recorded: one of them, or a page with the newest first.
--
-- ARGV[3] '' or the id of a task whose dead letter is wanted
-- ARGV[4] '' or the message after which a page begins  ARGV[5] most letters on it
-- RETURNS {next message or '', {{{id, token, payload, meta, error, code, packed history}, recorded ms,
--   packed decision or '', packed request for a discard or ''}, …}}
--   decision: {'replayed', new id, ms, message, person, reason} or
--   {'discarded', person, ms, message, reason, packed request before it, or ''}; request: {person, reason, ms}
--
-- Large letters end a page early, so that no answer is larger than a few of them.
local rows, bytes = {}, 0

-- Adds a letter, unless somebody else wrote it to an adopted stream, or a later
-- task of the same id has died and its letter took the place of this one.
local function add(message, entry)
  local f = {}
  for i = 1, #entry, 2 do
    f[entry[i]] = entry[i + 1]
    bytes = bytes + #entry[i + 1]
  end
  if not (f.task_id and f.token and f.history) then
    return
  end
  local open, decided, asked = call('HGET', P .. 'dead', f.task_id) == message, '', ''
  if open then
    asked = call('HGET', P .. 'discards', f.task_id) or ''
  else
    decided = call('HGET', P .. 'reviewed', f.task_id)
    if not decided or cmsgpack.unpack(decided)[4] ~= message then
      return
    end
  end
  rows[#rows + 1] = {
    { f.task_id, f.token, f.payload, f.meta, f.error, f.error_code, f.history }, f.recorded_at or f.failed_at, decided,
    asked,
  }
end

if ARGV[3] ~= '' then
  local message = call('HGET', P .. 'dead', ARGV[3])
  if not message then
    local reviewed = call('HGET', P .. 'reviewed', ARGV[3])
    message = reviewed and cmsgpack.unpack(reviewed)[4]
  end
  local entry = message and call('XRANGE', KEYS[4], message, message)[1]
  if entry then
    add(entry[1], entry[2])
  end
  return { '', rows }
end
local most, after = tonumber(ARGV[5]), ARGV[4]
for _ = 1, most do
  local entry = call('XREVRANGE', KEYS[4], after == '' and '+' or '(' .. after, '-', 'COUNT', 1)[1]
  if not entry then
    return { '', rows }
  end
  after = entry[1]
  add(after, entry[2])
  if bytes > 1048576 then
    break
  end
end
return { after, rows }
