#!lua
-- Takes the manager's term. Within an epoch terms only grow, so of two processes that believe to lead the newer wins; a new
-- epoch has no term until a leader takes one. The leader has to rebuild an epoch that is not, also after one died doing so.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] term
-- -> {1 taken or renewed, 0 a newer term leads; epoch id; 1 if this epoch has to be rebuilt; its age in ms}
-- @include router
local id, began_ms = epoch()
local known, rebuilt = unpack(redis.call('HMGET', KEYS[1], 'term', 'rebuilt'))
if known and tonumber(known) > tonumber(ARGV[3]) then return {0, id, 0, 0} end
redis.call('HSET', KEYS[1], 'term', ARGV[3])
return {1, id, rebuilt and 0 or 1, now_ms - began_ms}
