#!lua flags=no-writes
-- One pod, as the router has it.
--
-- KEYS[1] epoch
-- @keys ARGV[2]: pod pod:tier pod:draining pod:calls lease
-- ARGV[1] key prefix  ARGV[2] pod
-- -> {tier, 1 if draining, the call of its lease or '', status, its calls as one text, ip, port, version,
--     its incarnation, calls whose handlers hang and calls that it hands over, each as one text}, or {} for an unknown pod
-- @include keys
local name = ARGV[2]
local tier = redis.call('GET', key('pod:tier', name))
if not tier then return {} end
local status, leaving, ip, port, version, incarnation, hanging, handing_over = unpack(redis.call('HMGET', key('pod', name),
  'status', 'leaving', 'ip', 'port', 'version', 'incarnation', 'hanging', 'handing_over'))
local draining = leaving == '1' or redis.call('EXISTS', key('pod:draining', name)) == 1
local calls = table.concat(redis.call('SMEMBERS', key('pod:calls', name)), ' ')
local lease = redis.call('GET', key('lease', name))
return {tier, draining and 1 or 0, lease or '', status or '', calls, ip or '', port or '', version or '',
  incarnation or '0', hanging or '', handing_over or ''}
