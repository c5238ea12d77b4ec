#!lua flags=no-writes
-- A page of the pods or of the calls that have one.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] 'pods' or 'calls'  ARGV[3] from which place  ARGV[4] how many
-- -> {{name, tier, status, 1 if draining, calls as one text, ip, port, version}, …} of pods,
--    {{sid, pod, source pool, merchant, allocated at, allocation id}, …} of calls
local base, what, first, count = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local rows = {}
if what == 'calls' then
  for _, sid in ipairs(redis.call('ZRANGE', base .. 'calls', first, first + count - 1)) do
    local record = redis.call('HMGET', base .. 'call:' .. sid, 'pod_name', 'source_pool', 'merchant_id', 'allocated_at',
      'allocation_id')
    if record[1] then rows[#rows + 1] = {sid, record[1], record[2] or '', record[3] or '', record[4] or '', record[5] or ''} end
  end
  return rows
end
local names = redis.call('HKEYS', base .. 'pod:metadata')
table.sort(names)
for i = first + 1, math.min(first + count, #names) do
  local name = names[i]
  local f = redis.call('HMGET', base .. 'pod:' .. name, 'status', 'leaving', 'ip', 'port', 'version')
  local draining = f[2] == '1' or redis.call('EXISTS', base .. 'pod:draining:' .. name) == 1
  rows[#rows + 1] = {name, redis.call('GET', base .. 'pod:tier:' .. name) or '', f[1] or '', draining and 1 or 0,
    table.concat(redis.call('SMEMBERS', base .. 'pod:calls:' .. name), ' '), f[3] or '', f[4] or '', f[5] or ''}
end
return rows
