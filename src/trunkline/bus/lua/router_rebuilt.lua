#!lua
-- Marks this epoch's projection as rebuilt: the next leader need not do it again, and an allocation that ended since then
-- is not restored.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] epoch id  ARGV[4] term
-- -> 1 written, 0 refused
-- @include router
-- @include router_term
if not has_term(ARGV[3], ARGV[4]) then return 0 end
redis.call('HSET', KEYS[1], 'rebuilt', '1')
return 1
