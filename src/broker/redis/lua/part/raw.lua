-- Files waiting raw entries into their lanes; returns how many.
local function file_raw(limit)
  if call('XLEN', KEYS[2]) == 0 then
    return 0
  end
  local read = redis.pcall('XREADGROUP', 'GROUP', group, 'windlass', 'COUNT', limit, 'STREAMS', KEYS[2], '>')
  if read and read.err then
    if find(read.err, 'NOGROUP', 1, true) then
      intake().make_group()
    end
    read = call('XREADGROUP', 'GROUP', group, 'windlass', 'COUNT', limit, 'STREAMS', KEYS[2], '>')
  end
  if not read then
    return 0
  end
  local entries = read[1][2]
  call('HSET', P .. 'stats', 'task_floor', entries[#entries][1])
  intake().file_all(entries)
  return #entries
end
