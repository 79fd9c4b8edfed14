-- What a stream says of one of its groups, by field; nil where there is none.
local function group_info(key, name)
  local groups = redis.pcall('XINFO', 'GROUPS', key)
  if not groups.err then
    for _, info in ipairs(groups) do
      local found = {}
      for i = 1, #info, 2 do
        found[info[i]] = info[i + 1]
      end
      if found.name == name then
        return found
      end
    end
  end
  return nil
end
