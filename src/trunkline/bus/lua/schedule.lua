#!lua
-- Puts leads into the schedule. Adding is idempotent: a lead that is known at this version or a newer one stays where
-- it is, also while it is granted; a newer version moves it.
--
-- KEYS[1] leads  KEYS[2] bell
-- ARGV[1] key prefix of the domain
-- ARGV[2..] quadruples: lead id, version, pool, due in ms
-- -> the number of leads that were added or moved
local leads, bell, base = KEYS[1], KEYS[2], ARGV[1]
local added = 0

for i = 2, #ARGV, 4 do
  local id, version, pool, due = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2], ARGV[i + 3]
  local known = redis.call('HGET', leads, id)
  local known_version, known_pool, place
  if known then known_version, known_pool, place = known:match('^(%d+)|([^|]*)|(.*)$') end
  if not known or tonumber(known_version) < version then
    if place == 'scheduled' then redis.call('ZREM', base .. 'pool:' .. known_pool .. ':schedule', id) end
    redis.call('HSET', leads, id, version .. '|' .. pool .. '|scheduled')
    redis.call('ZADD', base .. 'pool:' .. pool .. ':schedule', due, id)
    added = added + 1
  end
end

if added > 0 then
  redis.call('LPUSH', bell, '1')
  redis.call('LTRIM', bell, 0, 15)
end
return added
