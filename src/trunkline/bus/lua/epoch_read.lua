#!lua flags=no-writes
-- The epoch of this server's projection, if it is of this run.
--
-- KEYS[1] epoch
-- -> the number, or 0 if the projection was lost
-- @include run_id
local run_id = server_run_id()
local known = redis.call('HMGET', KEYS[1], 'run_id', 'number')
if known[1] ~= run_id then return 0 end
return tonumber(known[2] or '0')
