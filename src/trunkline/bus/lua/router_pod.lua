#!lua flags=no-writes
-- One pod, as the router knows it.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] pod
-- -> {tier, 1 if draining, the call of its lease or '', status, its calls as one text, ip, port, version}, or {} for a
--    pod that is not known
local base, name = ARGV[1], ARGV[2]
local tier = redis.call('GET', base .. 'pod:tier:' .. name)
if not tier then return {} end
local status, leaving, ip, port, version =
  unpack(redis.call('HMGET', base .. 'pod:' .. name, 'status', 'leaving', 'ip', 'port', 'version'))
local draining = leaving == '1' or redis.call('EXISTS', base .. 'pod:draining:' .. name) == 1
local calls = table.concat(redis.call('SMEMBERS', base .. 'pod:calls:' .. name), ' ')
local lease = redis.call('GET', base .. 'lease:' .. name)
return {tier, draining and 1 or 0, lease or '', status or '', calls, ip or '', port or '', version or ''}
