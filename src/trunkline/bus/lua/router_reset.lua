#!lua
-- An operator frees a pod whose agent hangs: its allocations end, and the calls that it names do not count until it stops
-- naming them.
--
-- KEYS[1] epoch
-- @keys ARGV[3]: pod pod:tier pod:draining pod:calls pod:slots lease
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] pod  ARGV[4] tombstone in s
-- -> {1 if a slot came free while dials wait for agents, status}, or {} for an unknown pod
-- @include router
local name = ARGV[3]
local tier = redis.call('GET', key('pod:tier', name))
if not tier then return {} end
for _, sid in ipairs(held_calls(name)) do
  redis.call('SET', key('ended', sid), '1', 'EX', ARGV[4])
  end_allocation(name, sid, name)
end
local slots = redis.call('HGETALL', key('pod:slots', name))
for i = 1, #slots, 2 do end_by_id(slots[i + 1], 0) end
redis.call('DEL', key('pod:slots', name), key('lease', name))
local named, before = unpack(redis.call('HMGET', key('pod', name), 'calls', 'reset_calls'))
redis.call('HSET', key('pod', name), 'calls', '', 'reset_calls', (before or '') .. ' ' .. (named or ''))
local status, _, _, wakes = settle(name, tier)
return {wakes, status}
