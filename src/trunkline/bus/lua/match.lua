#!lua
-- Pairs due leads with free channels, in one step: nothing happens to a lead until a channel is free for it.
-- A channel is held by name (the attempt id), so a holder whose dialer died can be found and given back.
--
-- KEYS[1] pools  KEYS[2] numbers  KEYS[3] leads  KEYS[4] holders
-- ARGV[1] key prefix of the domain
-- ARGV[2] how far Postgres' clock is ahead of this server's, in ms: Postgres decides what is due
-- ARGV[3..] attempt ids, minted by the dialer; their count is the most that is granted
-- -> {next due in ms from now or -1, grants: attempt, lead, version, number, channel, due ms, …}
local pools, numbers, leads, holders = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local base = ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[2])
local next_attempt, grants, next_due = 3, {}, -1

-- The number of the pool with the most free channels, or nil.
local function freest(pool)
  local best, best_free, best_max = nil, 0, 0
  for _, number in ipairs(redis.call('SMEMBERS', base .. 'pool:' .. pool .. ':numbers')) do
    local max = tonumber(redis.call('HGET', numbers, number) or '0')
    local free = max - redis.call('HLEN', base .. 'channels:' .. number)
    if free > best_free then best, best_free, best_max = number, free, max end
  end
  return best, best_max
end

local function lowest_free(channels, max)
  for channel = 1, max do
    if redis.call('HEXISTS', channels, channel) == 0 then return channel end
  end
end

-- Grants one lead; false when the pool has no free channel.
local function grant(pool, lead, due)
  local number, max = freest(pool)
  if not number then return false end
  local channels = base .. 'channels:' .. number
  local channel = lowest_free(channels, max)
  if not channel then return false end
  redis.call('ZREM', base .. 'pool:' .. pool .. ':schedule', lead)
  local known = redis.call('HGET', leads, lead)
  if not known then return true end  -- an entry that lost its place is dropped; the loader brings the lead again
  local attempt, version = ARGV[next_attempt], known:match('^(%d+)|')
  redis.call('HSET', leads, lead, version .. '|' .. pool .. '|granted')
  redis.call('HSET', channels, channel, attempt)
  redis.call('HSET', holders, attempt, table.concat({number, channel, lead, pool, version, due, now}, '|'))
  for _, value in ipairs({attempt, lead, version, number, channel, due}) do grants[#grants + 1] = tostring(value) end
  next_attempt = next_attempt + 1
  return true
end

for _, pool in ipairs(redis.call('SMEMBERS', pools)) do
  local schedule = base .. 'pool:' .. pool .. ':schedule'
  local due = redis.call('ZRANGE', schedule, '-inf', string.format('%.0f', now), 'BYSCORE', 'LIMIT', 0, #ARGV, 'WITHSCORES')
  for i = 1, #due, 2 do
    if next_attempt > #ARGV or not grant(pool, due[i], due[i + 1]) then break end
  end
  local upcoming = redis.call('ZRANGE', schedule, string.format('(%.0f', now), '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  if upcoming[2] then
    local wait = tonumber(upcoming[2]) - now
    if next_due < 0 or wait < next_due then next_due = wait end
  end
end
return {next_due, grants}
