-- Free slots of a tier: how many there are, and how many of them dials may reserve.
local function free_slots_in(tier)
  local pool = tier.pool
  if not tier.shared then return redis.call('TYPE', pool.available).ok == 'set' and redis.call('SCARD', pool.available) or 0 end
  if redis.call('TYPE', pool.available).ok ~= 'zset' then return 0 end
  local free = 0
  -- Counted by load, so that 10,000 pods cost as much as ten: there are at most `max` loads below the maximum.
  for load = 0, math.min(tier.max, 64) - 1 do
    free = free + (tier.max - load) * redis.call('ZCOUNT', pool.available, load, load)
  end
  return free
end

-- 10 % of the tier are the inbound reserve, unless its config sets it. At most 25 % yield to waiting calls, less the slots
-- that calls got after waiting.
local function free_for_dials(tier)
  local pool = tier.pool
  local capacity = redis.call('SCARD', pool.assigned) * tier.max
  local callers = tier.callers or math.floor(capacity / 10)
  local waiting = redis.call('ZCARD', pool.waiting)
  if waiting > 0 then
    local yields = math.max(0, math.floor(capacity / 4) - redis.call('SCARD', pool.yielded))
    -- A tier too small for 25 % yields one slot.
    if capacity > 0 and capacity < 4 then yields = 1 end
    waiting = math.min(waiting, yields)
  end
  return math.max(0, free_slots_in(tier) - callers - waiting)
end
