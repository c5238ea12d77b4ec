#!lua
-- Counts a heartbeat of a process that another one has replaced in Postgres.
--
-- KEYS[1] epoch
-- @keys ARGV[3]: superseded
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] pod
-- -> {how often within two minutes}
-- @include keys
local counter = key('superseded', ARGV[3])
local times = redis.call('INCR', counter)
redis.call('EXPIRE', counter, 120)
return {times}
