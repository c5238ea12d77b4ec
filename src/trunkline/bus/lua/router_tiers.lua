#!lua
-- Publishes the tiers. Readers see one version, also while processes of two versions run. A tier that is not named any more
-- keeps its type with a target of 0 until its pods have moved; one that changed its type gets its `available` rebuilt from
-- the state of its pods: nothing is lost, also with live calls.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] epoch id  ARGV[4] term  ARGV[5] order of assignment
-- ARGV[6..] tier, text, …
-- -> 1 published, 2 unchanged, 0 refused
-- @include router
-- @include router_term
if not has_term(ARGV[3], ARGV[4]) then return 0 end
local tiers = key('tiers')
local wanted, changed = {['#order'] = ARGV[5]}, {}
for i = 6, #ARGV, 2 do wanted[ARGV[i]] = ARGV[i + 1] end
local known, is_new = {}, false
local flat = redis.call('HGETALL', tiers)
for i = 1, #flat, 2 do known[flat[i]] = flat[i + 1] end
for tier, text in pairs(known) do
  if not wanted[tier] and string.match(text, '^%a|') then
    if redis.call('SCARD', pool_of(tier).assigned) > 0 then
      wanted[tier] = string.gsub(text, '^(%a)|%d+|', '%1|0|')
    else
      redis.call('HDEL', tiers, tier)
      is_new = true
    end
  end
end
for tier, text in pairs(wanted) do
  if known[tier] ~= text then
    is_new = true
    redis.call('HSET', tiers, tier, text)
  end
  if string.sub(tier, 1, 1) ~= '#' then
    local kind, before = string.sub(text, 1, 1), string.sub(known[tier] or text, 1, 1)
    -- A key without members fits any type: a busy pod of an exclusive tier may still take calls in a shared one.
    if kind ~= before or not fits(pool_of(tier), kind == 's') then changed[#changed + 1] = tier end
  end
end
for _, tier in ipairs(changed) do
  local pool = pool_of(tier)
  redis.call('DEL', pool.available, pool.order)
  for _, name in ipairs(redis.call('SMEMBERS', pool.assigned)) do settle(name, tier) end
end
if is_new then redis.call('HINCRBY', tiers, '#number', 1) end
return is_new and 1 or 2
