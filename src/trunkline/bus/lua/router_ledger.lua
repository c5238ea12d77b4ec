#!lua
-- What of the journal is not so any more. A process that died between its script and its note left rows behind: pods that
-- are gone, and allocations that are over. Asked by name under the manager's term, so a loss of memory is never taken
-- for the end of everything.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] epoch id  ARGV[4] term  ARGV[5] 'pods' or 'calls'
-- ARGV[6..] pod, … or call sid, pod, allocation id, …
-- -> {1 done, 0 refused; pod that is not there, … or allocation id that is over, 1 if its call has ended, …}
-- @include router
-- @include router_term
if not has_term(ARGV[3], ARGV[4]) then return {0} end
local found = {1}
if ARGV[5] == 'pods' then
  for i = 6, #ARGV do
    if redis.call('EXISTS', base .. 'pod:tier:' .. ARGV[i]) == 0 then found[#found + 1] = ARGV[i] end
  end
  return found
end
for i = 6, #ARGV, 3 do
  local holder, allocation = unpack(redis.call('HMGET', call_key(ARGV[i]), 'pod_name', 'allocation_id'))
  -- A record that was restored from a heartbeat has no allocation id yet.
  if holder ~= ARGV[i + 1] or (allocation and allocation ~= ARGV[i + 2]) then
    found[#found + 1] = ARGV[i + 2]
    found[#found + 1] = redis.call('EXISTS', base .. 'ended:' .. ARGV[i])
  end
end
return found
