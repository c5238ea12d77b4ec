#!lua
-- The manager knows that before this epoch nothing was allocated (a new installation): idle pods are believed at once.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] epoch id  ARGV[4] term
-- -> 1 written, 0 refused
-- @include router
-- @include router_term
if not has_term(ARGV[3], ARGV[4]) then return 0 end
redis.call('HSET', KEYS[1], 'began_ms', '0')
return 1
