#!lua flags=no-writes
-- How many pods each exclusive tier has, and how many calls have a pod.
--
-- KEYS[1] calls
-- ARGV[1] key prefix  ARGV[2..] tiers
-- -> {calls, available, assigned, available, assigned, …}
local counts = {redis.call('ZCARD', KEYS[1])}
for i = 2, #ARGV do
  local pool = ARGV[1] .. 'pool:' .. ARGV[i]
  counts[#counts + 1] = redis.call('SCARD', pool .. ':available')
  counts[#counts + 1] = redis.call('SCARD', pool .. ':assigned')
end
return counts
