#!lua flags=no-writes
-- A page of the pods or of the calls that have one.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] 'pods' or 'calls'  ARGV[3] offset  ARGV[4] how many
-- -> {{name, tier, status, 1 if draining, calls as one text, ip, port, version, calls whose handlers hang and calls
--     that it hands over, each as one text}, …} of pods,
--    {{sid, pod, source pool, merchant, allocated at, allocation id}, …} of calls
-- @include keys
local what, first, count = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local rows = {}
if what == 'calls' then
  for _, sid in ipairs(redis.call('ZRANGE', key('calls'), first, first + count - 1)) do
    local record = redis.call('HMGET', key('call', sid), 'pod_name', 'source_pool', 'merchant_id', 'allocated_at',
      'allocation_id')
    if record[1] then rows[#rows + 1] = {sid, record[1], record[2] or '', record[3] or '', record[4] or '', record[5] or ''} end
  end
  return rows
end
local names = redis.call('HKEYS', key('pod:metadata'))
table.sort(names)
for i = first + 1, math.min(first + count, #names) do
  local name = names[i]
  local f = redis.call('HMGET', key('pod', name), 'status', 'leaving', 'ip', 'port', 'version', 'hanging',
    'handing_over')
  local draining = f[2] == '1' or redis.call('EXISTS', key('pod:draining', name)) == 1
  rows[#rows + 1] = {name, redis.call('GET', key('pod:tier', name)) or '', f[1] or '', draining and 1 or 0,
    table.concat(redis.call('SMEMBERS', key('pod:calls', name)), ' '), f[3] or '', f[4] or '', f[5] or '',
    f[6] or '', f[7] or ''}
end
return rows
