#!lua
-- Sets the newest of the agents' versions from Postgres.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] epoch id  ARGV[4] term  ARGV[5] version, '' for none
-- -> 1 written, 0 refused
-- @include router
-- @include router_term
if not has_term(ARGV[3], ARGV[4]) then return 0 end
if ARGV[5] == '' then redis.call('DEL', key('version')) else redis.call('SET', key('version'), ARGV[5]) end
return 1
