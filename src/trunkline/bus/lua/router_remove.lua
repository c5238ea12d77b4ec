#!lua
-- Removes a pod that is gone: from its pools, whatever their type, and with it the allocations of all its calls. They
-- leave no tombstone: the carrier says when a call is over, and a call that lives may have another pod.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] epoch id  ARGV[4] term  ARGV[5] pod
-- ARGV[6] its uid, or '' for any  ARGV[7] its last heartbeat, or '' for any: one that spoke meanwhile stays
-- -> {1 removed, 0 refused, 2 it is another pod by now or has spoken; orphaned call, its allocation id, …}
-- @include router
-- @include router_term
if not has_term(ARGV[3], ARGV[4]) then return {0} end
local name, uid, heard = ARGV[5], ARGV[6], ARGV[7]
local known_uid = redis.call('HGET', pod_key(name), 'uid')
if uid ~= '' and known_uid and known_uid ~= '' and known_uid ~= uid then return {2} end
if heard ~= '' and redis.call('ZSCORE', base .. 'heartbeats', name) ~= heard then return {2} end
local gone = {1}
for _, sid in ipairs(held_calls(name)) do
  gone[#gone + 1] = sid
  gone[#gone + 1] = redis.call('HGET', call_key(sid), 'allocation_id') or ''
  end_allocation(name, sid, name)
end
local tier = redis.call('GET', base .. 'pod:tier:' .. name)
if tier then leave_tier(name, tier) end
redis.call('DEL', pod_key(name), base .. 'pod:tier:' .. name, lease_key(name), held_key(name), base .. 'pod:draining:' .. name)
redis.call('HDEL', base .. 'pod:metadata', name)
redis.call('ZREM', base .. 'heartbeats', name)
return gone
