#!lua flags=no-writes
-- How many pods each tier has, how much of it is free, how many calls have a pod, and how many wait for one.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix
-- -> {calls, waiting, kept, tier, 1 if shared, pods in `available`, assigned, calls that it could take now, waiting, kept,
--     tier, …}
-- @include keys
-- @include router_pools
local counts = {redis.call('ZCARD', key('calls')), redis.call('ZCARD', key('waiting')),
  redis.call('ZCARD', key('kept'))}
local tiers = redis.call('HGETALL', key('tiers'))
for i = 1, #tiers, 2 do
  local tier, kind, max = tiers[i], string.match(tiers[i + 1], '^(%a)|%d+|(%d+)')
  if kind then
    local pool = pool_of(tier)
    local available = pool.available
    local stored, pods, room = redis.call('TYPE', available).ok, 0, 0
    if stored == 'zset' then
      pods = redis.call('ZCARD', available)
      -- Counted by load, so that 10,000 pods cost as much as ten: there are at most `max` loads below the maximum.
      for load = 0, math.min(tonumber(max), 64) - 1 do
        room = room + (max - load) * redis.call('ZCOUNT', available, load, load)
      end
    elseif stored == 'set' then
      pods = redis.call('SCARD', available)
      room = pods
    end
    for _, value in ipairs({tier, kind == 's' and 1 or 0, pods, redis.call('SCARD', pool.assigned), room,
      redis.call('ZCARD', pool.waiting), redis.call('ZCARD', pool.kept)}) do counts[#counts + 1] = value end
  end
end
return counts
