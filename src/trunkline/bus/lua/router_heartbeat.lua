#!lua
-- A pod says that it lives, which calls it holds, and whether it is leaving. A new pod is registered; a pod that has
-- nothing to do is free. So every heartbeat also heals: a pod that fell out of the pool comes back with its next one,
-- and a busy pod comes back busy after this server lost its memory.
-- Within one boot of the pod an older sequence number is ignored. Another boot id means that the process before it
-- died with its call: the allocation ends without a tombstone, since the carrier's call may still want a pod.
--
-- KEYS[1] pod  KEYS[2] lease  KEYS[3] draining  KEYS[4] tier of the pod  KEYS[5] heartbeats  KEYS[6] calls
-- KEYS[7] metadata
-- ARGV[1] key prefix  ARGV[2] pod  ARGV[3] boot id  ARGV[4] sequence  ARGV[5] 1 if the pod is leaving
-- ARGV[6] the calls it holds, separated by spaces  ARGV[7] tier of a new pod  ARGV[8] lease in s
-- ARGV[9] tombstone in s  ARGV[10..] further fields of the pod: name, value, …
-- -> {1 if it was news, tier, 1 if draining, the call that has the pod or ''}
local pod, lease, calls_key, base, name = KEYS[1], KEYS[2], KEYS[6], ARGV[1], ARGV[2]
local boot, sequence, leaving, calls = ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]
local lease_s, tombstone_s = ARGV[8], ARGV[9]
local time = redis.call('TIME')
local now_ms = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local tier = redis.call('GET', KEYS[4]) or ARGV[7]
local pool = base .. 'pool:' .. tier

local function draining()
  return leaving == '1' or redis.call('EXISTS', KEYS[3]) == 1
end

local function answer(news)
  return {news, tier, draining() and 1 or 0, redis.call('GET', lease) or ''}
end

local function names(call)
  return (' ' .. calls .. ' '):find(' ' .. call .. ' ', 1, true) ~= nil
end

local function end_allocation(call)
  if redis.call('HGET', base .. 'call:' .. call, 'pod_name') == name then
    redis.call('DEL', base .. 'call:' .. call)
    redis.call('ZREM', calls_key, call)
  end
  if redis.call('GET', lease) == call then
    redis.call('DEL', lease)
    redis.call('HDEL', pod, 'allocated_call_sid', 'allocated_at')
    redis.call('HSET', pod, 'released_at', time[1])
  end
end

local function register()
  redis.call('SET', KEYS[4], tier)
  redis.call('SADD', pool .. ':assigned', name)
  redis.call('HSET', KEYS[7], name, '{"tier":"' .. tier .. '","name":"' .. name .. '"}')
  redis.call('ZADD', KEYS[5], now_ms, name)
  redis.call('HSET', pod, 'boot_id', boot, 'sequence', ARGV[4], 'leaving', leaving, 'calls', calls, unpack(ARGV, 10))
end

-- What the pod named before and does not name now has ended there, even if its release was lost on the way.
local function end_dropped(before)
  for call in before:gmatch('%S+') do
    if not names(call) and redis.call('HGET', base .. 'call:' .. call, 'pod_name') == name then
      redis.call('SET', base .. 'ended:' .. call, '1', 'EX', tombstone_s)
      end_allocation(call)
    end
  end
end

-- A call that the pod holds and nobody has recorded: this server lost its memory.
local function restore()
  for call in calls:gmatch('%S+') do
    local record = base .. 'call:' .. call
    local holder = redis.call('HGET', record, 'pod_name')
    local ours = not holder or holder == name
    if ours and redis.call('EXISTS', lease, base .. 'ended:' .. call) == 0 then
      redis.call('HSET', record, 'pod_name', name, 'source_pool', 'pool:' .. tier)
      redis.call('HSETNX', record, 'merchant_id', '')
      redis.call('HSETNX', record, 'allocated_at', time[1])
      redis.call('EXPIRE', record, lease_s)
      redis.call('SET', lease, call, 'EX', lease_s)
      redis.call('ZADD', calls_key, 'NX', now_ms, call)
      redis.call('HSET', pod, 'allocated_call_sid', call, 'allocated_at', time[1], 'source_pool', 'pool:' .. tier)
    end
  end
end

-- The same rule is in router_release.lua.
local function settle()
  local status = 'available'
  if redis.call('EXISTS', lease) == 1 then status = 'allocated'
  elseif calls ~= '' then status = 'ending'
  elseif draining() then status = 'draining' end
  redis.call('HSET', pod, 'status', status)
  if status == 'available' then
    redis.call('SADD', pool .. ':available', name)
    redis.call('ZADD', pool .. ':order', 'NX', now_ms, name)
  else
    redis.call('SREM', pool .. ':available', name)
    redis.call('ZREM', pool .. ':order', name)
  end
end

local known_boot, known_sequence, before = unpack(redis.call('HMGET', pod, 'boot_id', 'sequence', 'calls'))
if known_boot == boot and sequence <= tonumber(known_sequence) then return answer(0) end

if known_boot == boot then
  end_dropped(before or '')
elseif known_boot then
  local orphan = redis.call('GET', lease)
  if orphan and not names(orphan) then end_allocation(orphan) end
end
register()
restore()
settle()
return answer(1)
