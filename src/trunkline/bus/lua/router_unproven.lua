#!lua
-- Allocations that have to be compared with their rows in Postgres, and those that an operator reset by hand.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] epoch id  ARGV[4] term  ARGV[5] ms that a proposal may take
-- ARGV[6] the most
-- -> {1 done, 0 refused; {allocation id, …}, {allocation id, 'call pod', …} reset}
-- @include router
-- @include router_term
if not has_term(ARGV[3], ARGV[4]) then return {0} end
return {1, redis.call('ZRANGE', key('unproven'), '-inf', whole(now_ms - ARGV[5]), 'BYSCORE', 'LIMIT', 0, ARGV[6]),
  redis.call('HGETALL', key('resets'))}
