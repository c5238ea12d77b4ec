#!lua flags=no-writes
-- The pods of every tier, by `assigned`.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix
-- -> {{tier, pod, …}, …}
-- @include keys
-- @include router_pools
local found = {}
local tiers = redis.call('HGETALL', key('tiers'))
for i = 1, #tiers, 2 do
  if string.match(tiers[i + 1], '^%a|') then
    local row = redis.call('SMEMBERS', pool_of(tiers[i]).assigned)
    table.insert(row, 1, tiers[i])
    found[#found + 1] = row
  end
end
return found
