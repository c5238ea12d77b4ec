#!lua flags=no-writes
-- One pod, as the router knows it.
--
-- KEYS[1] pod  KEYS[2] tier of the pod  KEYS[3] draining  KEYS[4] lease
-- -> {tier, 1 if draining, the call that has the pod or '', status}, or {} for a pod that is not known
local tier = redis.call('GET', KEYS[2])
if not tier then return {} end
local status, leaving = unpack(redis.call('HMGET', KEYS[1], 'status', 'leaving'))
local draining = leaving == '1' or redis.call('EXISTS', KEYS[3]) == 1
return {tier, draining and 1 or 0, redis.call('GET', KEYS[4]) or '', status or ''}
