#!lua
-- How many slots of each tier dials may reserve now. If there are none, the next freed slot wakes the dialers.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] run id of the server
-- -> {'free', tier, slots, …}, or {'stale'}
-- @include router
-- @include router_headroom
epoch()
if not is_rebuilt then return {'stale'} end
local free, total = {'free'}, 0
local flat = redis.call('HGETALL', key('tiers'))
for i = 1, #flat, 2 do
  local kind, max, callers = string.match(flat[i + 1], '^(%a)|%d+|(%d+)|?(%d*)$')
  if kind then
    local slots = free_for_dials({pool = pool_of(flat[i]), shared = kind == 's', max = tonumber(max), callers = tonumber(callers)})
    free[#free + 1] = flat[i]
    free[#free + 1] = slots
    total = total + slots
  end
end
if total == 0 then redis.call('SET', key('dials:waiting'), '1', 'PX', 3000) end
return free
