#!lua
-- Restores the tombstones of calls that ended shortly before the projection was lost.
--
-- KEYS[1] epoch
-- @keys ARGV[5..] by 2: ended
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] epoch id  ARGV[4] term  ARGV[5..] call sid, s left, …
-- -> 1 done, 0 refused
-- @include router
-- @include router_term
if not has_term(ARGV[3], ARGV[4]) then return 0 end
for i = 5, #ARGV, 2 do redis.call('SET', key('ended', ARGV[i]), '1', 'EX', ARGV[i + 1], 'NX') end
return 1
