#!lua
-- Acknowledges and removes wakeups in one step: a crash between the two would leave entries that no worker reads again.
--
-- KEYS[1] stream
-- ARGV[1] group  ARGV[2..] ids of entries
-- -> the number that was removed
local ids = {}
for i = 2, #ARGV do ids[i - 1] = ARGV[i] end
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('XACK', KEYS[1], ARGV[1], unpack(ids)) end
return redis.call('XDEL', KEYS[1], unpack(ids))
