#!lua
-- Looks at pods one by one and puts each where it belongs: one that fell out of its pool comes back, busy ones come back
-- busy with the size they have, a drain that ran out ends, a reset by hand takes effect, and the order is written anew.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] epoch id  ARGV[4] term  ARGV[5] tier  ARGV[6..] pods
-- -> {how many were somewhere else before; call that was reset, pod, …}, or {-1}: refused
-- @include router
-- @include router_term
if not has_term(ARGV[3], ARGV[4]) then return {-1} end
local tier, pool = ARGV[5], pool_of(ARGV[5])
local config = tier_config(tier) or {shared = false, max = 1}
local found = {0}

local function place(name)
  local kind = redis.call('TYPE', pool.available).ok
  if kind == 'zset' then return redis.call('ZSCORE', pool.available, name) or '' end
  return kind == 'set' and tostring(redis.call('SISMEMBER', pool.available, name)) or '0'
end

for i = 6, #ARGV do
  local name = ARGV[i]
  local own = redis.call('GET', base .. 'pod:tier:' .. name)
  if own and own ~= tier then
    leave_tier(name, tier)
  elseif redis.call('SISMEMBER', pool.assigned, name) == 1 then
    if not own then write_tier(name, tier) end
    local before = place(name)
    settle(name, tier)
    if place(name) ~= before then found[1] = found[1] + 1 end
    local since = not config.shared and redis.call('ZSCORE', pool.order, name)
    if since then
      local free_ms = tonumber(since) % 1e13
      local behind = tonumber(rank_of(redis.call('HGET', pod_key(name), 'version'))) >= 1e13
      redis.call('ZADD', pool.order, whole(behind and free_ms + 1e13 or free_ms), name)
    end
  end
end
local resets = redis.call('HGETALL', base .. 'resets')
for i = 1, #resets, 2 do
  local sid, name = string.match(resets[i + 1], '^(%S+) (%S+)$')
  found[#found + 1] = sid
  found[#found + 1] = name
  redis.call('HDEL', base .. 'resets', resets[i])
end
return found
