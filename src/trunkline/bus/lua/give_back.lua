#!lua
-- Gives grants back: the channels are free again, and each lead returns to the schedule or is forgotten.
-- A grant that is no longer held (somebody gave it back already) changes nothing.
--
-- KEYS[1] holders  KEYS[2] leads  KEYS[3] bell
-- ARGV[1] key prefix of the domain
-- ARGV[2..] pairs: attempt id, due in ms ('' forgets the lead: Postgres no longer wants it called at this version)
-- -> the number of grants that were given back
local holders, leads, bell, base = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local given = 0

for i = 2, #ARGV, 2 do
  local attempt, due = ARGV[i], ARGV[i + 1]
  local held = redis.call('HGET', holders, attempt)
  if held then
    local number, channel, lead, pool, version = held:match('^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|')
    if redis.call('HGET', base .. 'channels:' .. number, channel) == attempt then
      redis.call('HDEL', base .. 'channels:' .. number, channel)
    end
    redis.call('HDEL', holders, attempt)
    -- A newer version of the lead may have been scheduled meanwhile; only our own grant is ours to move.
    if redis.call('HGET', leads, lead) == version .. '|' .. pool .. '|granted' then
      if due == '' then
        redis.call('HDEL', leads, lead)
      else
        redis.call('HSET', leads, lead, version .. '|' .. pool .. '|scheduled')
        redis.call('ZADD', base .. 'pool:' .. pool .. ':schedule', due, lead)
      end
    end
    given = given + 1
  end
end

if given > 0 then
  redis.call('LPUSH', bell, '1')
  redis.call('LTRIM', bell, 0, 15)
end
return given
