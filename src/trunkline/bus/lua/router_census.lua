#!lua flags=no-writes
-- What the manager has to look at: the pods of every tier, by `assigned`, and calls that their pods do not name.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] ms since an allocation before its absence counts
-- -> {{tier, pod, …}, …, {'#unnamed', sid, pod, allocation id, …}}
local base, found = ARGV[1], {}
local time = redis.call('TIME')
local tiers = redis.call('HGETALL', base .. 'tiers')
for i = 1, #tiers, 2 do
  if string.match(tiers[i + 1], '^%a|') then
    local merchant = string.match(tiers[i], '^merchant:(.+)$')
    local root = base .. (merchant and 'merchant:' .. merchant or 'pool:' .. tiers[i])
    local row = redis.call('SMEMBERS', root .. ':assigned')
    table.insert(row, 1, tiers[i])
    found[#found + 1] = row
  end
end
local unnamed = {'#unnamed'}
for _, sid in ipairs(redis.call('ZRANGE', base .. 'unnamed', 0, 99)) do
  local record = redis.call('HMGET', base .. 'call:' .. sid, 'pod_name', 'allocation_id', 'allocated_at')
  if record[1] and time[1] - tonumber(record[3] or time[1]) >= tonumber(ARGV[2]) / 1000 then
    for _, value in ipairs({sid, record[1], record[2] or ''}) do unnamed[#unnamed + 1] = value end
  end
end
found[#found + 1] = unnamed
return found
