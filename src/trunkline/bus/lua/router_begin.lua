#!lua
-- A call has its pod in Postgres: the reserved one, or one that Postgres picked. Idempotent. A call that has ended meanwhile
-- stays ended, and a pod with a newer process gets nothing.
--
-- KEYS[1] epoch
-- @keys ARGV[4]: kept begun
-- @keys ARGV[5]: call ended
-- @keys ARGV[6]: pod pod:tier pod:draining pod:calls pod:slots lease
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] lease in s  ARGV[4] allocation id  ARGV[5] call sid  ARGV[6] pod
-- ARGV[7] slot  ARGV[8] incarnation  ARGV[9] merchant  ARGV[10] source pool  ARGV[11] turn
-- -> {1 if a slot came free while dials wait for agents}
-- @include router
-- @include router_rows
epoch()
local row = {id = ARGV[4], sid = ARGV[5], pod = ARGV[6], slot = ARGV[7], incarnation = ARGV[8], merchant = ARGV[9],
  source = ARGV[10], turn = ARGV[11], at_s = now_s}
local known = redis.call('HGET', key('pod', row.pod), 'incarnation')
if redis.call('EXISTS', key('ended', row.sid)) == 1 then return {0} end
if known and tonumber(known) > tonumber(row.incarnation) then return {0} end
local record = redis.call('HMGET', key('call', row.sid), 'pod_name', 'allocation_id', 'turn', 'allocated_at')
if record[1] == row.pod and record[2] == row.id and (record[3] or '0') == row.turn then row.at_s = record[4] end
put_row(row, ARGV[3])
stop_waiting(row.sid)
redis.call('ZADD', key('unproven'), 'NX', whole(now_ms), row.id)
return {settle_touched()}
