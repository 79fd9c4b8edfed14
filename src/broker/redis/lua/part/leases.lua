-- Module: puts leases back on a pending list that does not show them.
--
-- A group that was lost (a flush, a failover) and made again has yet to read
-- what is leased. A settlement of many relies on it that what is pending was
-- read, and read in the lane's order; so nothing behind where the group has read
-- is put back before all that stands in between, whoever holds it.
local PAGE, MOST = 10, 1000

local function lease(key, worker, messages, force)
  messages[#messages + 1] = force
  messages[#messages + 1] = 'JUSTID'
  if injected then
    messages[#messages + 1], messages[#messages + 2] = 'TIME', now
  end
  call('XCLAIM', key, group, worker, 0, unpack(messages))
end

-- Reads on as long as what comes is leased; returns where that ends.
local function read_leased(key)
  local last, held, seen = last_read(key), {}, 0
  local before = last
  repeat
    local page, leased = call('XRANGE', key, '(' .. last, '+', 'COUNT', PAGE), 0
    for _, entry in ipairs(page) do
      local token = call('HGET', LIVE, entry[2][1])
      local t = token and unpack_token(token)
      if not t or t[1] ~= 'R' or t[5] ~= entry[1] then
        break
      end
      held[t[4]] = held[t[4]] or {}
      table.insert(held[t[4]], entry[1])
      last, leased = entry[1], leased + 1
    end
    seen = seen + leased
  until leased < PAGE or seen >= MOST
  for worker, messages in pairs(held) do
    lease(key, worker, messages, 'FORCE')
  end
  if last ~= before then
    call('XGROUP', 'SETID', key, group, last)
  end
  return last
end

-- What is behind the end of that waits for the next time, or for a claim.
local function put_back(key, worker, messages)
  redis.pcall('XGROUP', 'CREATE', key, group, '0', 'MKSTREAM')
  local last, own = read_leased(key), {}
  for _, message in ipairs(messages) do
    if not is_earlier(last, message) then
      own[#own + 1] = message
    end
  end
  if #own > 0 then
    lease(key, worker, own, 'FORCE')
  end
end

return { put_back = put_back }
