#!lua
-- Ends a call's allocation: twice frees once. It leaves a tombstone, also of a call that had no pod, so that an
-- answer webhook that comes after the end gets a hang-up and not a pod.
-- The platform may learn of the end before the pod's socket is closed. A pod that still names the call is not handed
-- out until it lets go itself: by its own release, or by a heartbeat without the call.
--
-- KEYS[1] call  KEYS[2] ended  KEYS[3] calls
-- ARGV[1] key prefix  ARGV[2] call sid  ARGV[3] the pod that lets go, '' when the platform releases
-- ARGV[4] tombstone in s
-- -> {'released', pod, source pool, 1 if the pod is draining, status of the pod}
--    {'unknown'}  this call has no pod, or another one than the one that lets go
local call, ended, calls = KEYS[1], KEYS[2], KEYS[3]
local base, sid, by, tombstone_s = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local time = redis.call('TIME')

local function let_go(pod)
  local named = {}
  for other in (redis.call('HGET', base .. 'pod:' .. pod, 'calls') or ''):gmatch('%S+') do
    if other ~= sid then named[#named + 1] = other end
  end
  redis.call('HSET', base .. 'pod:' .. pod, 'calls', table.concat(named, ' '))
end

local function draining(pod)
  return redis.call('EXISTS', base .. 'pod:draining:' .. pod) == 1
    or redis.call('HGET', base .. 'pod:' .. pod, 'leaving') == '1'
end

-- Makes the pod free if nothing speaks against it; returns its status. The same rule is in router_heartbeat.lua.
local function settle(pod, source_pool)
  local pool, status = base .. source_pool, 'available'
  if redis.call('EXISTS', base .. 'lease:' .. pod) == 1 then status = 'allocated'
  elseif (redis.call('HGET', base .. 'pod:' .. pod, 'calls') or '') ~= '' then status = 'ending'
  elseif draining(pod) then status = 'draining' end
  redis.call('HSET', base .. 'pod:' .. pod, 'status', status)
  if status == 'available' then
    redis.call('SADD', pool .. ':available', pod)
    redis.call('ZADD', pool .. ':order', 'NX', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)), pod)
  end
  return status
end

local function known(pod, source_pool)
  return redis.call('SISMEMBER', base .. source_pool .. ':assigned', pod) == 1
end

local holder, source_pool = unpack(redis.call('HMGET', call, 'pod_name', 'source_pool'))

if by ~= '' and holder ~= by then
  -- The platform was first, or the call has moved to another pod: that one keeps it.
  local tier = redis.call('GET', base .. 'pod:tier:' .. by)
  if tier and known(by, 'pool:' .. tier) then
    let_go(by)
    settle(by, 'pool:' .. tier)
  end
  if not holder then redis.call('SET', ended, '1', 'EX', tombstone_s) end
  return {'unknown'}
end

redis.call('SET', ended, '1', 'EX', tombstone_s)
if not holder then return {'unknown'} end

redis.call('DEL', call)
redis.call('ZREM', calls, sid)
if redis.call('GET', base .. 'lease:' .. holder) == sid then redis.call('DEL', base .. 'lease:' .. holder) end
local status = 'gone'
if known(holder, source_pool) then
  if by == holder then let_go(holder) end
  redis.call('HDEL', base .. 'pod:' .. holder, 'allocated_call_sid', 'allocated_at')
  redis.call('HSET', base .. 'pod:' .. holder, 'released_at', time[1])
  status = settle(holder, source_pool)
end
return {'released', holder, source_pool, draining(holder) and 1 or 0, status}
