#!lua
-- Writes down who holds a channel, as Postgres has it: after memory was lost, and after a dial was refused because
-- another attempt held its channel. A holder that is already right stays as it is.
--
-- KEYS[1] holders
-- ARGV[1] key prefix of the domain
-- ARGV[2..] quadruples: attempt id, number, channel, lead id ('' for an inbound call)
-- -> the number of holders that were written
local holders, base = KEYS[1], ARGV[1]
local written = 0

for i = 2, #ARGV, 4 do
  local attempt, number, channel, lead = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local channels = base .. 'channels:' .. number
  local before = redis.call('HGET', channels, channel)
  if before ~= attempt then
    if before then redis.call('HDEL', holders, before) end
    redis.call('HSET', channels, channel, attempt)
    redis.call('HSET', holders, attempt, table.concat({number, channel, lead, '', 0, 0, 0}, '|'))
    written = written + 1
  end
end
return written
