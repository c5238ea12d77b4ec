#!lua
-- Merchants' tiers, kept equal with Postgres. What differs from what was written last was changed by hand, and is told;
-- what does not is overwritten with what Postgres says. A loss takes both copies, so it never looks like a change.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] id of a new epoch  ARGV[3] epoch id  ARGV[4] term  ARGV[5..] merchant, JSON, … of Postgres
-- -> {1 done, 0 refused; merchant, JSON or '' if it was removed, … changed by hand}
-- @include router
-- @include router_term
if not has_term(ARGV[3], ARGV[4]) then return {0} end
local live, written = base .. 'merchant:config', base .. 'merchant:written'

local function read(key)
  local flat, all = redis.call('HGETALL', key), {}
  for i = 1, #flat, 2 do all[flat[i]] = flat[i + 1] end
  return all
end

local now, before, truth, found = read(live), read(written), {}, {1}
for i = 5, #ARGV, 2 do truth[ARGV[i]] = ARGV[i + 1] end
for merchant, text in pairs(now) do
  if before[merchant] ~= text then
    found[#found + 1] = merchant
    found[#found + 1] = text
    redis.call('HSET', written, merchant, text)
    truth[merchant] = text
  end
end
for merchant in pairs(before) do
  if not now[merchant] then
    found[#found + 1] = merchant
    found[#found + 1] = ''
    redis.call('HDEL', written, merchant)
    truth[merchant] = nil
  end
end
for merchant, text in pairs(truth) do
  if now[merchant] ~= text then redis.call('HSET', live, merchant, text) end
  redis.call('HSET', written, merchant, text)
end
for merchant in pairs(now) do
  if not truth[merchant] then
    redis.call('HDEL', live, merchant)
    redis.call('HDEL', written, merchant)
  end
end
return found
