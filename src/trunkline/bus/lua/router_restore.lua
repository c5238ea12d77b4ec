#!lua
-- Brings back one pod after memory was lost: its tier, and the calls that the journal says it has. It is not free by this:
-- it has to be heard first. A call that the pod or anybody else told of meanwhile is left as it is, and so is one that ended.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] epoch id  ARGV[4] term  ARGV[5] pod  ARGV[6] tier
-- ARGV[7] lease in s  ARGV[8] 1 if pods send heartbeats of their own accord  ARGV[9..] call sid, allocation id, merchant, allocated at, source pool, …
-- -> 1 done, 0 refused
-- @include router
-- @include router_term
if not has_term(ARGV[3], ARGV[4]) then return 0 end
local name, tier, lease_s = ARGV[5], ARGV[6], ARGV[7]
if redis.call('HEXISTS', base .. 'tiers', tier) == 0 then tier = 'standard' end
tier = redis.call('GET', base .. 'pod:tier:' .. name) or tier
write_tier(name, tier)
-- One that never speaks again has to be missed.
if ARGV[8] == '1' then redis.call('ZADD', base .. 'heartbeats', 'NX', whole(now_ms), name) end
for i = 9, #ARGV, 5 do
  local sid, allocation, merchant, at, source = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local holder = redis.call('HGET', call_key(sid), 'pod_name')
  if redis.call('EXISTS', base .. 'ended:' .. sid) == 0 and (not holder or holder == name) then
    redis.call('HSET', call_key(sid), 'pod_name', name, 'source_pool', source, 'merchant_id', merchant,
      'allocated_at', at, 'allocation_id', allocation)
    redis.call('EXPIRE', call_key(sid), lease_s)
    hold_call(name, sid, lease_s)
    redis.call('HSET', pod_key(name), 'allocated_call_sid', sid, 'allocated_at', at, 'source_pool', source)
  end
end
settle(name, tier)
return 1
