#!lua
-- Gives a call its pod, in one step: there is no moment in which a taken pod is recorded nowhere, and however many
-- requests for one call arrive at once, all of them get the same pod.
-- The pod that has been free longest is taken. The order is a hint: a pod counts as free only if the SET has it.
--
-- KEYS[1] call  KEYS[2] ended  KEYS[3] calls
-- ARGV[1] key prefix  ARGV[2] call sid  ARGV[3] merchant  ARGV[4] allocation id  ARGV[5] lease in s
-- ARGV[6..] exclusive tiers, tried in this order
-- -> {'allocated' | 'already', pod, source pool, allocated at, allocation id, base URL of the pod}
--    {'none'}   no pod is free
--    {'ended'}  the call is over
local call, ended, calls = KEYS[1], KEYS[2], KEYS[3]
local base, sid, merchant, allocation, lease_s = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
-- A pod that may not be taken is passed over; so many of them at the head of the order end the search.
local LOOKS = 32

local function answer(how, pod)
  local record = redis.call('HMGET', call, 'source_pool', 'allocated_at', 'allocation_id')
  local url = redis.call('HGET', base .. 'pod:' .. pod, 'base_url')
  return {how, pod, record[1] or '', record[2] or '', record[3] or '', url or ''}
end

-- True if the pod may be taken. A pod with a lease never belongs among the free; a draining one keeps its place.
local function usable(pool, pod)
  if redis.call('EXISTS', base .. 'lease:' .. pod) == 1 then
    redis.call('SREM', pool .. ':available', pod)
    return false
  end
  if redis.call('EXISTS', base .. 'pod:draining:' .. pod) == 1 then
    redis.call('ZADD', pool .. ':order', string.format('%.0f', now_ms), pod)
    return false
  end
  return true
end

local function longest_free(pool)
  for _ = 1, math.min(LOOKS, redis.call('ZCARD', pool .. ':order')) do
    local pod = redis.call('ZPOPMIN', pool .. ':order')[1]
    if redis.call('SISMEMBER', pool .. ':available', pod) == 1 and usable(pool, pod) then return pod end
  end
  -- Somebody put pods into the SET by hand, or the order was lost.
  for _, pod in ipairs(redis.call('SRANDMEMBER', pool .. ':available', LOOKS)) do
    if usable(pool, pod) then return pod end
  end
end

local function take(tier, pod)
  local pool = base .. 'pool:' .. tier
  redis.call('SREM', pool .. ':available', pod)
  redis.call('ZREM', pool .. ':order', pod)
  redis.call('HSET', call, 'pod_name', pod, 'source_pool', 'pool:' .. tier, 'merchant_id', merchant,
    'allocated_at', time[1], 'allocation_id', allocation)
  redis.call('EXPIRE', call, lease_s)
  redis.call('HSET', base .. 'pod:' .. pod, 'status', 'allocated', 'allocated_call_sid', sid,
    'allocated_at', time[1], 'source_pool', 'pool:' .. tier)
  redis.call('HDEL', base .. 'pod:' .. pod, 'released_at')
  redis.call('SET', base .. 'lease:' .. pod, sid, 'EX', lease_s)
  redis.call('ZADD', calls, string.format('%.0f', now_ms), sid)
end

if redis.call('EXISTS', ended) == 1 then return {'ended'} end

local holder = redis.call('HGET', call, 'pod_name')
if holder then
  -- A record that was restored from a heartbeat has no allocation id yet.
  redis.call('HSETNX', call, 'allocation_id', allocation)
  return answer('already', holder)
end

for i = 6, #ARGV do
  local pod = longest_free(base .. 'pool:' .. ARGV[i])
  if pod then
    take(ARGV[i], pod)
    return answer('allocated', pod)
  end
end
return {'none'}
