-- Free slots of a tier: how many there are, and on how many of them a dial could be kept.
local function room_in(tier)
  local pool = tier.pool
  if not tier.shared then return redis.call('TYPE', pool.available).ok == 'set' and redis.call('SCARD', pool.available) or 0 end
  if redis.call('TYPE', pool.available).ok ~= 'zset' then return 0 end
  local room = 0
  -- By load, so that ten thousand pods cost as much as ten: there are at most `max` loads below the maximum.
  for load = 0, math.min(tier.max, 64) - 1 do
    room = room + (tier.max - load) * redis.call('ZCOUNT', pool.available, load, load)
  end
  return room
end

-- A tenth of the tier is for those who call us, unless its config says how much; a quarter at most is given way to those
-- who wait, of which those who have waited and got a slot of it have had their part.
local function for_dials(tier)
  local pool = tier.pool
  local capacity = redis.call('SCARD', pool.assigned) * tier.max
  local callers = tier.callers or math.floor(capacity / 10)
  local waiting = redis.call('ZCARD', pool.waiting)
  if waiting > 0 then
    local yields = math.max(0, math.floor(capacity / 4) - redis.call('SCARD', pool.yielded))
    -- A tier too small for a quarter gives way with one slot.
    if capacity > 0 and capacity < 4 then yields = 1 end
    waiting = math.min(waiting, yields)
  end
  return math.max(0, room_in(tier) - callers - waiting)
end
