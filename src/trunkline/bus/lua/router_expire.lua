#!lua
-- Forgets pods that have been silent for too long. Their calls lose the allocation and nothing else: the carrier says
-- when a call is over, and a pod that speaks again brings its calls back.
-- Silence counts only while we could hear: after a gap in these runs (no router, no Valkey) every pod gets a full
-- time-to-live again, or one outage would empty the pools.
--
-- KEYS[1] heartbeats  KEYS[2] hearing  KEYS[3] calls  KEYS[4] metadata
-- ARGV[1] key prefix  ARGV[2] time-to-live of a heartbeat in ms  ARGV[3] the longest gap between runs in ms
-- ARGV[4] the most pods that one run forgets
-- -> names of the pods that are gone
local heartbeats, hearing, calls, base = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local ttl_ms, gap_ms = tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local function hearing_for_ms()
  local since, ran = unpack(redis.call('HMGET', hearing, 'since', 'ran'))
  if not since or now_ms - tonumber(ran) > gap_ms then since = now_ms end
  redis.call('HSET', hearing, 'since', string.format('%.0f', since), 'ran', string.format('%.0f', now_ms))
  return now_ms - tonumber(since)
end

local function forget(pod)
  local tier = redis.call('GET', base .. 'pod:tier:' .. pod)
  if tier then
    local pool = base .. 'pool:' .. tier
    redis.call('SREM', pool .. ':available', pod)
    redis.call('SREM', pool .. ':assigned', pod)
    redis.call('ZREM', pool .. ':order', pod)
  end
  local call = redis.call('GET', base .. 'lease:' .. pod)
  if call and redis.call('HGET', base .. 'call:' .. call, 'pod_name') == pod then
    redis.call('DEL', base .. 'call:' .. call)
    redis.call('ZREM', calls, call)
  end
  redis.call('DEL', base .. 'pod:' .. pod, base .. 'pod:tier:' .. pod, base .. 'lease:' .. pod)
  redis.call('HDEL', KEYS[4], pod)
  redis.call('ZREM', heartbeats, pod)
end

-- Records run out after their lease, or are deleted by hand; the oldest of the list are looked at.
local function drop_lost_calls()
  for _, call in ipairs(redis.call('ZRANGE', calls, 0, 99)) do
    if redis.call('EXISTS', base .. 'call:' .. call) == 0 then redis.call('ZREM', calls, call) end
  end
end

drop_lost_calls()
if hearing_for_ms() < ttl_ms then return {} end
local silent = redis.call('ZRANGE', heartbeats, '-inf', string.format('(%.0f', now_ms - ttl_ms), 'BYSCORE', 'LIMIT', 0, ARGV[4])
for _, pod in ipairs(silent) do forget(pod) end
return silent
