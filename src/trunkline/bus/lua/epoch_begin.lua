#!lua
-- Begins a rebuild under a new epoch number. Nothing that is live is touched: a number has keys of its own.
-- Refused if this life of the server already has a published epoch as new, or a newer rebuild under way.
--
-- KEYS[1] epoch
-- ARGV[1] epoch number
-- -> 1 begun, 0 refused
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
local known = redis.call('HMGET', KEYS[1], 'run_id', 'number', 'building')
local number = tonumber(ARGV[1])
if known[1] == run_id and (tonumber(known[2] or '0') >= number or tonumber(known[3] or '0') > number) then return 0 end
if known[1] ~= run_id then redis.call('DEL', KEYS[1]) end
redis.call('HSET', KEYS[1], 'run_id', run_id, 'building', ARGV[1])
return 1
