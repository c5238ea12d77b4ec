#!lua
-- Takes the manager's term. Within an epoch terms only grow, so of two who believe to lead the newer one wins; a new epoch
-- has none until somebody took it, and who takes it rebuilds.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] id of a new epoch  ARGV[3] term
-- -> {1 taken or kept, 0 somebody newer leads; epoch id; 1 if this epoch had no term: rebuild}
-- @include router
local id = epoch()
local known = redis.call('HGET', KEYS[1], 'term')
if known and tonumber(known) > tonumber(ARGV[3]) then return {0, id, 0} end
redis.call('HSET', KEYS[1], 'term', ARGV[3])
return {1, id, known and 0 or 1}
