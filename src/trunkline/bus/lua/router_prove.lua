#!lua
-- Applies what Postgres has of allocations: those with a live row are made equal to it, the others are freed.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] epoch id  ARGV[4] term  ARGV[5] lease in s
-- ARGV[6] live rows as JSON: id, sid, pod, slot, incarnation, merchant, source, turn, at_s  ARGV[7] ids without one, as JSON
-- ARGV[8] ids of resets that Postgres has, as JSON
-- -> {1 done, 0 refused; 1 if a slot came free while dials wait for agents; how many were freed}
-- @include router
-- @include router_term
-- @include router_rows
if not has_term(ARGV[3], ARGV[4]) then return {0} end
local given_back = 0
for _, row in ipairs(cjson.decode(ARGV[6])) do
  local is_over, has_record = false, (redis.call('HGET', key('kept', row.id), 'source_pool') or '') ~= ''
  if row.sid ~= '' then
    is_over, has_record = redis.call('EXISTS', key('ended', row.sid)) == 1, holder_of(row.sid) == row.pod
  end
  local is_here = has_record and redis.call('HGET', key('pod:slots', row.pod), row.slot) == row.id
  if not is_over and not is_here then put_row(row, ARGV[5]) end
  redis.call('ZREM', key('unproven'), row.id)
end
for _, id in ipairs(cjson.decode(ARGV[7])) do
  local pod = end_by_id(id, 0)
  if pod then
    touched[pod] = true
    given_back = given_back + 1
  end
  redis.call('ZREM', key('unproven'), id)
end
for _, id in ipairs(cjson.decode(ARGV[8])) do redis.call('HDEL', key('resets'), id) end
return {1, settle_touched(), given_back}
