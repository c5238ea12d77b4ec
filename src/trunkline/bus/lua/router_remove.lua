#!lua
-- Removes a pod that is gone: from its pools, whatever their type, and with it the allocations of all its calls, as in
-- Postgres already. They leave no tombstone: a live call may get another pod.
--
-- KEYS[1] epoch
-- @keys ARGV[5]: pod pod:tier pod:draining pod:calls pod:slots lease
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] epoch id  ARGV[4] term  ARGV[5] pod
-- ARGV[6] its last heartbeat, or '' for any: a pod with a newer one stays
-- ARGV[7] the oldest incarnation that may go  ARGV[8] and the newest: another process of the same name stays
-- -> {1 removed, 0 refused, 2 it is another process by now or sent a heartbeat}
-- @include router
-- @include router_term
if not has_term(ARGV[3], ARGV[4]) then return {0} end
local name, heard = ARGV[5], ARGV[6]
local number = tonumber(redis.call('HGET', key('pod', name), 'incarnation') or '0')
if number < tonumber(ARGV[7]) or number > tonumber(ARGV[8]) then return {2} end
if heard ~= '' and redis.call('ZSCORE', key('heartbeats'), name) ~= heard then return {2} end
for _, sid in ipairs(held_calls(name)) do end_allocation(name, sid, name) end
local slots = redis.call('HGETALL', key('pod:slots', name))
for i = 1, #slots, 2 do end_by_id(slots[i + 1], 0) end
local tier = redis.call('GET', key('pod:tier', name))
if tier then leave_tier(name, tier) end
redis.call('DEL', key('pod', name), key('pod:tier', name), key('lease', name), key('pod:calls', name), key('pod:slots', name),
  key('pod:draining', name))
redis.call('HDEL', key('pod:metadata'), name)
redis.call('ZREM', key('heartbeats'), name)
return {1}
