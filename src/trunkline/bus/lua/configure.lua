#!lua
-- Makes the numbers of the domain what Postgres says they are. Channels that are held stay held.
--
-- KEYS[1] pools  KEYS[2] numbers  KEYS[3] bell
-- ARGV[1] key prefix of the domain
-- ARGV[2..] triples: number id, pool, max_channels (0 for a number that may not dial)
-- -> the number of numbers whose pool or maximum changed
local pools, numbers, bell, base = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local wanted, members, changed = {}, {}, 0

for i = 2, #ARGV, 3 do
  local number, pool, max = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  wanted[number] = max
  members[pool] = members[pool] or {}
  members[pool][number] = true
end

for _, pool in ipairs(redis.call('SMEMBERS', pools)) do
  local key = base .. 'pool:' .. pool .. ':numbers'
  for _, number in ipairs(redis.call('SMEMBERS', key)) do
    if not (members[pool] and members[pool][number]) then changed = changed + redis.call('SREM', key, number) end
  end
  if not members[pool] then redis.call('SREM', pools, pool) end
end
for pool, set in pairs(members) do
  redis.call('SADD', pools, pool)
  for number in pairs(set) do changed = changed + redis.call('SADD', base .. 'pool:' .. pool .. ':numbers', number) end
end

for _, number in ipairs(redis.call('HKEYS', numbers)) do
  if not wanted[number] then redis.call('HDEL', numbers, number) changed = changed + 1 end
end
for number, max in pairs(wanted) do
  if redis.call('HGET', numbers, number) ~= max then
    redis.call('HSET', numbers, number, max)
    changed = changed + 1
  end
end

if changed > 0 then
  redis.call('LPUSH', bell, '1')
  redis.call('LTRIM', bell, 0, 15)
end
return changed
