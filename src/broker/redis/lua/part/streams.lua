-- Looks into a stream's state.

-- Whether one message id comes before another.
local function is_earlier(a, b)
  local am, as = string.match(a, '^(%d+)-(%d+)$')
  local bm, bs = string.match(b, '^(%d+)-(%d+)$')
  am, bm = tonumber(am), tonumber(bm)
  return am < bm or (am == bm and tonumber(as) < tonumber(bs))
end

-- Where the group of workers has read a stream up to.
local function last_read(key)
  local groups = redis.pcall('XINFO', 'GROUPS', key)
  if not groups.err then
    for _, info in ipairs(groups) do
      local name, last
      for i = 1, #info, 2 do
        if info[i] == 'name' then name = info[i + 1] end
        if info[i] == 'last-delivered-id' then last = info[i + 1] end
      end
      if name == group then
        return last
      end
    end
  end
  return '0-0'
end
