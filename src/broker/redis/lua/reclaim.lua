-- Takes tasks back whose lease has expired.
--
-- ARGV[3] where to go on: a lane, or ''  ARGV[4] message id in it, or '0'
-- ARGV[5] the server's run id  ARGV[6] 'auto' for XAUTOCLAIM, 'pending' for XPENDING + XCLAIM
-- RETURNS {'done' or 'held', next lane or '', next message id, {requeued ids}, {dead ids}}
local BATCH, MOST_LANES = 10, 200
if not string.find(call('HGET', KEYS[1], 'reclaim_on'), 'VisibilityTimeout', 1, true) then
  return { 'done', '', '0', {}, {} }
end
call('DEL', P .. 'none') -- the first write, allowed when memory is full
local clock_is_new, since = clock_of(ARGV[5])
if clock_is_new then
  return { 'held', '', '0', {}, {} }
end
local idle = tonumber(call('HGET', KEYS[1], 'visibility'))
-- A lease that was last renewed on the server before: nobody could renew it, so no worker need have crashed.
local crash = now - idle >= since
if injected then
  local time = call('TIME')
  idle = idle + (time[1] * 1000 + math.floor(time[2] / 1000) - now)
end

-- Up to BATCH expired entries of a stream from a message on, and where to go on.
local function expired(key, from)
  if ARGV[6] == 'auto' then
    local answer = redis.pcall('XAUTOCLAIM', key, group, 'windlass', idle, from, 'COUNT', BATCH)
    if answer.err then
      return {}, '0-0'
    end
    return answer[2], answer[1]
  end
  local pending = redis.pcall('XPENDING', key, group, from == '0' and '-' or from, '+', BATCH * 10)
  if pending.err or #pending == 0 then
    return {}, '0-0'
  end
  local old, last = {}, nil
  for _, row in ipairs(pending) do
    last = row[1]
    if tonumber(row[3]) >= idle then
      old[#old + 1] = row[1]
      if #old == BATCH then break end
    end
  end
  local next = '0-0'
  if #pending == BATCH * 10 or #old == BATCH then
    local ms, seq = string.match(last, '^(%d+)-(%d+)$')
    next = ms .. '-' .. string.format('%.0f', tonumber(seq) + 1)
  end
  if #old == 0 then
    return {}, next
  end
  return call('XCLAIM', key, group, 'windlass', idle, unpack(old)), next
end

local requeued, dead = {}, {}
local function take_back(key, entries)
  for _, entry in ipairs(entries) do
    if entry and entry[2] then
      local id = entry[2][1]
      local token = call('HGET', LIVE, id)
      local t = token and cjson.decode(token)
      if not t or t[1] ~= 'R' or t[5] ~= entry[1] then
        moves().clear(id, t, key, entry)
      elseif moves().lose(id, t, key, entry, 'visibility_timeout', crash) == 'P' then
        dead[#dead + 1] = id
      else
        requeued[#requeued + 1] = id
      end
    end
  end
end

-- Raw entries that a consumer from before took and left.
local function take_back_raw(entries)
  local whole = {}
  for _, entry in ipairs(entries) do
    if entry and entry[2] then
      whole[#whole + 1] = entry
    end
  end
  if #whole > 0 then
    intake().file_all(whole)
  end
end

-- Before Redis 7 an entry that was deleted stays pending, with nothing to show
-- for it; by now it is pending for us.
local function drop_deleted(key)
  for _, row in ipairs(call('XPENDING', key, group, '-', '+', BATCH, 'windlass')) do
    if #call('XRANGE', key, row[1], row[1]) == 0 then
      call('XACK', key, group, row[1])
    end
  end
end

local RAW = '!raw' -- sorts before every lane, and is none
local lanes = call('SMEMBERS', P .. 'lanes')
lanes[#lanes + 1] = RAW
table.sort(lanes)
local next_lane, next_message, visited = '', '0', 0
for _, lane in ipairs(lanes) do
  if lane >= ARGV[3] then
    if visited == MOST_LANES or #requeued + #dead >= BATCH then
      next_lane = lane
      break
    end
    visited = visited + 1
    local key = lane == RAW and KEYS[2] or P .. 'lane:' .. lane
    local entries, next = expired(key, lane == ARGV[3] and ARGV[4] or '0')
    if lane == RAW then
      take_back_raw(entries)
    else
      take_back(key, entries)
    end
    for i = 1, #entries do
      if not entries[i] then
        drop_deleted(key)
        break
      end
    end
    if next ~= '0-0' then
      next_lane, next_message = lane, next
      break
    end
  end
end
announce(SURE)
flush_moves()
ring()
return { 'done', next_lane, next_message, requeued, dead }
