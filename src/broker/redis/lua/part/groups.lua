-- What a stream says of the workers' group; nothing pending where there is none.
local function workers_group(key)
  return group_info(key, group) or { pending = 0, ['last-delivered-id'] = '0-0' }
end

-- Raw entries that nobody has filed: the lag where the server knows it, else
-- counted. An adopted stream may hold history, so its length says nothing.
-- And those that a consumer from before has taken and not acknowledged.
local function raw_entries()
  if call('EXISTS', KEYS[2]) == 0 then
    return 0, 0
  end
  local info = workers_group(KEYS[2])
  local waiting = info.lag or #call('XRANGE', KEYS[2], '(' .. info['last-delivered-id'], '+', 'COUNT', 1000)
  return waiting, info.pending
end
