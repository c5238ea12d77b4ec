#!lua
-- Removes what dead workers left: wakeups that were read and never acknowledged, whose mailboxes the sweep has found long
-- since, and then the consumers themselves. Every start of a process makes a new consumer.
--
-- KEYS[1] stream
-- ARGV[1] group  ARGV[2] gone_after_ms
-- -> the length of the pending list that is left
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local groups = redis.call('XINFO', 'GROUPS', KEYS[1])
if #groups == 0 then return 0 end

local old = redis.call('XPENDING', KEYS[1], ARGV[1], 'IDLE', ARGV[2], '-', '+', 1000)
for _, entry in ipairs(old) do
  redis.call('XACK', KEYS[1], ARGV[1], entry[1])
  redis.call('XDEL', KEYS[1], entry[1])
end

local pending = 0
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local is = {}
  for i = 1, #consumer, 2 do is[consumer[i]] = consumer[i + 1] end
  if is.pending == 0 and is.idle > tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], is.name)
  else
    pending = pending + is.pending
  end
end
return pending
