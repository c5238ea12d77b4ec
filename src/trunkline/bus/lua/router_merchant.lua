#!lua
-- One merchant's tier as Postgres has it now: allocations use it at once, and `merchant:written` records it as
-- ours, so that only a change by hand differs from it. The edit is counted, so that a manager that read Postgres before
-- it does not undo it.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] merchant  ARGV[3] JSON, '' to remove it
-- -> 1
-- @include keys
local live, written = key('merchant:config'), key('merchant:written')
redis.call('HINCRBY', KEYS[1], 'merchant_edits', 1)
if ARGV[3] == '' then
  redis.call('HDEL', live, ARGV[2])
  redis.call('HDEL', written, ARGV[2])
else
  redis.call('HSET', live, ARGV[2], ARGV[3])
  redis.call('HSET', written, ARGV[2], ARGV[3])
end
return 1
