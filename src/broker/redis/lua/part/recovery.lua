-- Module: finds what a worker holds and does not know of.

-- After an answer was lost: what is pending for the worker and not among
-- what it holds. By epoch: the lost call may have settled a task and claimed
-- it again.
local function hand_back(worker, held, out)
  local taken = 0
  local lanes = call('SMEMBERS', P .. 'lanes')
  table.sort(lanes)
  for _, lane in ipairs(lanes) do
    local key = P .. 'lane:' .. lane
    local pending = redis.pcall('XPENDING', key, group, '-', '+', 1000, worker)
    if not pending.err then
      for _, row in ipairs(pending) do
        local entry = call('XRANGE', key, row[1], row[1])[1]
        local id = entry and entry[2][1]
        if id then
          local token = call('HGET', LIVE, id)
          local t = token and unpack_token(token)
          if t and t[1] == 'R' and t[5] == row[1] and t[4] == worker and t[2] ~= held[id] then
            local n = #out
            out[n + 1], out[n + 2], out[n + 3], out[n + 4] = id, entry[2][2], entry[2][4] or '', token
            taken = taken + 1
          end
        end
      end
    end
  end
  return taken
end

return { hand_back = hand_back }
