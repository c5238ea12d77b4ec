#!lua
-- Publishes a rebuilt epoch: from now on it is the projection in use. A late, older rebuild is refused.
--
-- KEYS[1] epoch  KEYS[2] dialer_wakeups
-- ARGV[1] epoch number
-- -> 1 published, 0 refused
-- @include run_id
local run_id = server_run_id()
local known = redis.call('HMGET', KEYS[1], 'run_id', 'building')
if known[1] ~= run_id or known[2] ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'number', ARGV[1])
redis.call('HDEL', KEYS[1], 'building')
redis.call('LPUSH', KEYS[2], '1')
redis.call('LTRIM', KEYS[2], 0, 15)
return 1
