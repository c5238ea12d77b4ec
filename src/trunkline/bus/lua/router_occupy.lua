#!lua
-- Postgres has given this slot to another allocation: it is not proposed again. The leader checks it 2 s later, and repairs
-- the record or frees the slot. A mere proposal for the slot is dropped.
--
-- KEYS[1] epoch
-- @keys ARGV[3]: pod pod:tier pod:draining pod:calls pod:slots lease
-- @keys ARGV[5]: kept begun
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] pod  ARGV[4] slot  ARGV[5] allocation id
-- -> {0}
-- @include router
-- @include router_rows
local pod, slot, id = ARGV[3], ARGV[4], ARGV[5]
local other = redis.call('HGET', key('pod:slots', pod), slot)
if other == id then return {0} end
if other then
  if not redis.call('ZSCORE', key('unproven'), other) then return {0} end
  touched[end_by_id(other, 0) or pod] = true
end
redis.call('HSET', key('pod:slots', pod), slot, id)
if redis.call('EXISTS', key('kept', id), key('begun', id)) == 0 then redis.call('HSET', key('kept', id), 'pod', pod, 'slot', slot) end
-- 5 s old in 2 s.
redis.call('ZADD', key('unproven'), whole(now_ms - 3000), id)
touched[pod] = true
settle_touched()
return {0}
