#!lua
-- Frees channels by attempt id: twice frees once, and never somebody else's channel.
-- The lead is forgotten, so that its next version can be scheduled again.
--
-- KEYS[1] holders  KEYS[2] leads  KEYS[3] bell
-- ARGV[1] key prefix of the domain
-- ARGV[2..] attempt ids
-- -> the number of channels that were freed
local holders, leads, bell, base = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local freed = 0

for i = 2, #ARGV do
  local attempt = ARGV[i]
  local held = redis.call('HGET', holders, attempt)
  if held then
    local number, channel, lead = held:match('^([^|]*)|([^|]*)|([^|]*)|')
    if redis.call('HGET', base .. 'channels:' .. number, channel) == attempt then
      redis.call('HDEL', base .. 'channels:' .. number, channel)
      freed = freed + 1
    end
    local place = redis.call('HGET', leads, lead)
    if place and place:match('|granted$') then redis.call('HDEL', leads, lead) end
    redis.call('HDEL', holders, attempt)
  end
end

if freed > 0 then
  redis.call('LPUSH', bell, '1')
  redis.call('LTRIM', bell, 0, 15)
end
return freed
