#!lua
-- Keeps new calls away from a pod, or ends that. Its live calls go on. An operator's drain expires; a pod that leaves on
-- its own reports it in its heartbeats, and nothing here shortens that.
--
-- KEYS[1] epoch
-- @keys ARGV[3]: pod pod:tier pod:draining pod:calls pod:slots lease
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] pod  ARGV[4] how long in s, 0: the drain ends
-- -> {tier, 1 if it has calls, 1 if it drains, status, 1 if a slot came free while dials
--     wait for agents}, or {} for an unknown pod
-- @include router
local name, ttl_s = ARGV[3], tonumber(ARGV[4])
local tier = redis.call('GET', key('pod:tier', name))
if not tier then return {} end
if ttl_s > 0 then
  redis.call('SET', key('pod:draining', name), 'true', 'EX', ttl_s)
else
  redis.call('DEL', key('pod:draining', name))
end
local status, settled_tier, _, wakes = settle(name, tier)
local has_call = #held_calls(name) > 0 or redis.call('EXISTS', key('lease', name)) == 1
return {settled_tier, has_call and 1 or 0, is_draining(name) and 1 or 0, status, wakes}
