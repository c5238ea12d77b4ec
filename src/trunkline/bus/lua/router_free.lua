#!lua
-- Frees ended allocations, reserved or begun. Twice frees once. A begun one leaves a tombstone of its call.
--
-- KEYS[1] epoch
-- @keys ARGV[4..]: kept begun
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] tombstone in s, 0: none  ARGV[4..] allocation ids
-- -> {1 if a slot came free while dials wait for agents; how many were known}
-- @include router
-- @include router_rows
local known = 0
for i = 4, #ARGV do
  local pod = end_by_id(ARGV[i], tonumber(ARGV[3]))
  if pod then
    touched[pod] = true
    known = known + 1
  end
end
return {settle_touched(), known}
