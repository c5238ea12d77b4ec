#!lua
-- Ends the allocation of a call that never came to its pod. Only this allocation, and only while the pod still does not
-- name it: since the leader asked about it the call may have come.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] epoch id  ARGV[4] term  ARGV[5] call sid
-- ARGV[6] allocation id  ARGV[7] tombstone in s, 0: none
-- -> {1 ended, 0 refused, 2 it is another one by now, or came}
-- @include router
-- @include router_term
if not has_term(ARGV[3], ARGV[4]) then return {0} end
local sid = ARGV[5]
local holder, allocation = unpack(redis.call('HMGET', call_key(sid), 'pod_name', 'allocation_id'))
if not holder or (allocation or '') ~= ARGV[6] or not redis.call('ZSCORE', base .. 'unnamed', sid) then return {2} end
if ARGV[7] ~= '0' then redis.call('SET', base .. 'ended:' .. sid, '1', 'EX', ARGV[7]) end
end_allocation(holder, sid, holder)
local tier = redis.call('GET', base .. 'pod:tier:' .. holder)
if tier then settle(holder, tier) end
return {1}
