#!lua
-- Keeps merchants' tiers equal to Postgres. A value that differs from the last written one was changed by hand: it is
-- returned, and counts as written only once Postgres has it, so a leader that dies in between loses nothing. Any other value
-- is overwritten with Postgres's. A loss takes both copies; all of several missing at once is a partial loss too.
-- The API writes an edit to Postgres, then here: a copy of Postgres that was read before that would undo it.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] epoch id  ARGV[4] term
-- ARGV[5] how many edits there had been before Postgres was read, '?': only return it  ARGV[6..] merchant, JSON, … of Postgres
-- -> {1 done, 2 nothing done: there are other edits, 0 refused; how many edits there are; merchant, JSON or '' if it was
--     removed, … changed by hand}
-- @include router
-- @include router_term
if not has_term(ARGV[3], ARGV[4]) then return {0} end
local live, written = key('merchant:config'), key('merchant:written')
local edits = redis.call('HGET', KEYS[1], 'merchant_edits') or '0'
if ARGV[5] ~= edits then return {2, edits} end

local function read(hash)
  local flat, all = redis.call('HGETALL', hash), {}
  for i = 1, #flat, 2 do all[flat[i]] = flat[i + 1] end
  return all
end

local stored, found, by_hand = {}, {1, edits}, {}
for i = 6, #ARGV, 2 do stored[ARGV[i]] = ARGV[i + 1] end
if redis.call('EXISTS', live) == 0 and redis.call('HLEN', written) > 1 then redis.call('DEL', written) end
local now, before = read(live), read(written)

local function report(merchant, text)
  by_hand[merchant] = true
  stored[merchant] = text
  found[#found + 1] = merchant
  found[#found + 1] = text or ''
end

for merchant, text in pairs(now) do
  if before[merchant] ~= text and stored[merchant] ~= text then report(merchant, text) end
end
for merchant in pairs(before) do
  if not now[merchant] then
    if stored[merchant] then report(merchant, nil) else redis.call('HDEL', written, merchant) end
  end
end
for merchant, text in pairs(stored) do
  if not by_hand[merchant] then
    if now[merchant] ~= text then redis.call('HSET', live, merchant, text) end
    redis.call('HSET', written, merchant, text)
  end
end
for merchant in pairs(now) do
  if not stored[merchant] then
    redis.call('HDEL', live, merchant)
    redis.call('HDEL', written, merchant)
  end
end
return found
