#!lua
-- Ends a call's allocation: twice frees once. It leaves a tombstone, also of a call that had no pod, so that an answer
-- webhook that comes after the end gets a hang-up and not a pod.
-- The platform may learn of the end before the pod's socket is closed. A pod that still names the call gets no other until
-- it releases the call itself: by its own release, or by a heartbeat without the call.
--
-- KEYS[1] epoch
-- @keys ARGV[3]: call ended
-- @keys ARGV[4]: pod pod:tier pod:draining pod:calls pod:slots lease
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] call sid  ARGV[4] the pod that releases, '' when the platform
-- does  ARGV[5] tombstone in s, 0: none  ARGV[6] only this allocation, '' for any
-- -> {'released', pod, source pool, 1 if the pod is draining, status of the pod, allocation id,
--     1 if a slot came free while dials wait for agents}
--    {'unknown', 1 if …}  this call has no pod, or another one than the one that releases
-- @include router
local sid, by, tombstone_s, only = ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]

local function bury()
  if tombstone_s > 0 then redis.call('SET', key('ended', sid), '1', 'EX', tombstone_s) end
end

local function let_go(pod)
  local named = {}
  for other in string.gmatch(redis.call('HGET', key('pod', pod), 'calls') or '', '%S+') do
    if other ~= sid then named[#named + 1] = other end
  end
  redis.call('HSET', key('pod', pod), 'calls', table.concat(named, ' '))
end

-- The end of its call does not restore a pod that was removed meanwhile.
local function tier_of(pod)
  local tier = redis.call('GET', key('pod:tier', pod))
  if tier and redis.call('SISMEMBER', pool_of(tier).assigned, pod) == 1 then return tier end
end

local holder, source, allocation = unpack(redis.call('HMGET', key('call', sid), 'pod_name', 'source_pool', 'allocation_id'))
if only ~= '' and allocation ~= only then return {'unknown', 0} end
stop_waiting(sid)

if by ~= '' and holder ~= by then
  -- The platform was first, or the call has moved to another pod, which keeps it.
  local tier, wakes = tier_of(by), 0
  if tier then
    let_go(by)
    wakes = select(4, settle(by, tier))
  end
  if not holder then bury() end
  return {'unknown', wakes}
end

bury()
if not holder then return {'unknown', 0} end

end_allocation(holder, sid, holder)
local status, drains, wakes, tier = 'gone', false, 0, tier_of(holder)
if tier then
  if by == holder then let_go(holder) end
  status, tier, drains, wakes = settle(holder, tier)
end
return {'released', holder, source or '', drains and 1 or 0, status, allocation or '', wakes}
