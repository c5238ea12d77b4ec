#!lua flags=no-writes
-- The pods of every tier, by `assigned`.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix
-- -> {{tier, pod, …}, …}
local base, found = ARGV[1], {}
local tiers = redis.call('HGETALL', base .. 'tiers')
for i = 1, #tiers, 2 do
  if string.match(tiers[i + 1], '^%a|') then
    local merchant = string.match(tiers[i], '^merchant:(.+)$')
    local root = base .. (merchant and 'merchant:' .. merchant or 'pool:' .. tiers[i])
    local row = redis.call('SMEMBERS', root .. ':assigned')
    table.insert(row, 1, tiers[i])
    found[#found + 1] = row
  end
end
return found
