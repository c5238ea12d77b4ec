#!lua
-- A router marks that it receives heartbeats.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] the longest gap in ms
-- -> {for how many ms they were received without a gap}
-- @include router
-- @include router_receiving
return {mark_receiving(tonumber(ARGV[3]))}
