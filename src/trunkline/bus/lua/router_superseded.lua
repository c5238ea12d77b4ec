#!lua
-- A replaced process of a pod has spoken, as Postgres says.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] pod
-- -> {how often within two minutes}
local key = ARGV[1] .. 'superseded:' .. ARGV[3]
local times = redis.call('INCR', key)
redis.call('EXPIRE', key, 120)
return {times}
