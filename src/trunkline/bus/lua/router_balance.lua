#!lua
-- After targets changed: pods move from tiers that have more than their target to those that lack some, and what is too
-- much elsewhere goes to standard. Idle pods move at once, busy ones when their calls are over.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] epoch id  ARGV[4] term  ARGV[5] the most pods to look at
-- -> {1 done, 0 refused; pod that moved or will, its new tier, …}
-- @include router
-- @include router_term
if not has_term(ARGV[3], ARGV[4]) then return {0} end
local looks, moved = tonumber(ARGV[5]), {1}
local tiers, order, counts, targets = {}, redis.call('HGET', base .. 'tiers', '#order') or '', {}, {}
local flat = redis.call('HGETALL', base .. 'tiers')
for i = 1, #flat, 2 do
  local target = string.match(flat[i + 1], '^%a|(%d+)|')
  if target then
    local tier = flat[i]
    tiers[#tiers + 1] = tier
    targets[tier], counts[tier] = tonumber(target), redis.call('SCARD', pool_of(tier).assigned)
  end
end
table.sort(tiers)

local function lacking()
  for tier in string.gmatch(order, '%S+') do
    if targets[tier] and counts[tier] < targets[tier] then return tier end
  end
end

local function is_idle(name)
  return redis.call('EXISTS', lease_key(name)) == 0 and #held_calls(name) == 0
    and (redis.call('HGET', pod_key(name), 'calls') or '') == ''
end

-- Who already was told to move counts for where it goes.
local marked = {}
for _, tier in ipairs(tiers) do
  if counts[tier] > targets[tier] then
    for _, name in ipairs(redis.call('SMEMBERS', pool_of(tier).assigned)) do
      if looks == 0 then break end
      looks = looks - 1
      local to = redis.call('HGET', pod_key(name), 'move_to')
      if to then
        redis.call('HDEL', pod_key(name), 'move_to')
      end
      marked[#marked + 1] = {name = name, from = tier, idle = is_idle(name)}
    end
  end
end
table.sort(marked, function(a, b) return (a.idle and 0 or 1) .. a.name < (b.idle and 0 or 1) .. b.name end)
for _, pod in ipairs(marked) do
  if counts[pod.from] > targets[pod.from] then
    local to = lacking() or (pod.from ~= 'standard' and 'standard')
    if to and to ~= pod.from then
      counts[pod.from], counts[to] = counts[pod.from] - 1, (counts[to] or 0) + 1
      redis.call('HSET', pod_key(pod.name), 'move_to', to)
      settle(pod.name, pod.from)
      moved[#moved + 1] = pod.name
      moved[#moved + 1] = to
    end
  end
end
return moved
