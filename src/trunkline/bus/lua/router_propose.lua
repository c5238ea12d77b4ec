#!lua
-- Reserves a slot of a pod for each of several dials, before they are placed: proposed here and decided in Postgres. The
-- pool manager withdraws a proposal that has no row there after 5 s.
-- As for calls, the merchant's tier is tried first, then standard, overflow and basic. But in each tier some slots stay
-- free: the inbound reserve, and those for waiting calls. The same id again gets the same slot.
--
-- KEYS[1] epoch
-- @keys ARGV[3..] by 2: kept begun
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3..] allocation id, merchant, …
-- -> {'kept', {pod, slot, incarnation, source pool, base URL} or {} for each …, {tier, slots that dials may still
--     reserve, …} of the tiers that were searched}
--    {'stale'}  this projection was lost and is not rebuilt yet
-- @include router
-- @include router_choose
-- @include router_headroom
epoch()
if not is_rebuilt then return {'stale'} end
local left, order = {}, {}

local function has_slot_for(tier, merchant)
  local name = tier.pool.tier
  if not left[name] then
    left[name] = free_for_dials(tier)
    order[#order + 1] = name
  end
  if left[name] == 0 then return false end
  -- The merchant's waiting calls come before its own dials.
  return redis.call('HEXISTS', tier.pool.waiting_merchants, merchant) == 0
end

local function proposed_before(id)
  local kept = redis.call('HMGET', key('kept', id), 'pod', 'slot', 'incarnation', 'source_pool')
  if not kept[1] or (kept[4] or '') == '' then return nil end
  kept[5] = redis.call('HGET', key('pod', kept[1]), 'base_url') or ''
  return kept
end

local function propose(id, merchant)
  local known = proposed_before(id)
  if known then return known end
  for _, tier in ipairs((chain(merchant))) do
    if has_slot_for(tier, merchant) then
      local pool = tier.pool
      local pod, slot = choose(tier, true)
      if pod then
        left[pool.tier] = left[pool.tier] - 1
        redis.call('HSET', key('pod:slots', pod), slot, id)
        redis.call('HSET', key('kept', id), 'pod', pod, 'slot', slot, 'incarnation', incarnation, 'source_pool', pool.source,
          'merchant_id', merchant)
        redis.call('ZADD', key('kept'), whole(now_ms), id)
        redis.call('ZADD', pool.kept, whole(now_ms), id)
        redis.call('ZADD', key('unproven'), whole(now_ms), id)
        if not tier.shared then redis.call('HSET', key('pod', pod), 'status', 'kept') end
        return {pod, slot, incarnation, pool.source, base_url}
      end
      left[pool.tier] = 0
    end
  end
  return {}
end

local answer, is_short = {'kept'}, false
for i = 3, #ARGV, 2 do
  local kept = propose(ARGV[i], ARGV[i + 1])
  if #kept == 0 then is_short = true end
  answer[#answer + 1] = kept
end
-- The next slot that is freed wakes the dialers.
if is_short then redis.call('SET', key('dials:waiting'), '1', 'PX', 3000) end
local free = {}
for _, name in ipairs(order) do
  free[#free + 1] = name
  free[#free + 1] = left[name]
end
answer[#answer + 1] = free
return answer
