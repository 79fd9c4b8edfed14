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
  local info = group_info(key, group)
  return info and info['last-delivered-id'] or '0-0'
end
