#!lua
-- What the cluster says of one pod. A pod that is not ready takes no new calls and keeps those it has. Another uid is
-- another pod of the same name: what the one before it had is orphaned, and its drain is not inherited.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] epoch id  ARGV[4] term  ARGV[5] pod  ARGV[6] uid
-- ARGV[7] 1 if ready  ARGV[8] 1 if it is being deleted  ARGV[9] durable tier or ''
-- ARGV[10] 1 if a pod that never sent a heartbeat may be believed idle
-- ARGV[11..] further fields of the pod: name, value, …
-- -> {1 done, 0 refused; tier; status; orphaned call, its allocation id, …}
-- @include router
-- @include router_term
if not has_term(ARGV[3], ARGV[4]) then return {0} end
local name, uid, ready, deleting = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local pod, found = pod_key(name), {1, '', ''}
local known_uid = redis.call('HGET', pod, 'uid')
if known_uid and known_uid ~= '' and known_uid ~= uid then
  for _, sid in ipairs(held_calls(name)) do
    found[#found + 1] = sid
    found[#found + 1] = redis.call('HGET', call_key(sid), 'allocation_id') or ''
    end_allocation(name, sid, name)
  end
  redis.call('DEL', pod, base .. 'pod:draining:' .. name)
  redis.call('ZREM', base .. 'heartbeats', name)
end
local tier = redis.call('GET', base .. 'pod:tier:' .. name)
local is_new = not tier or known_uid ~= uid
-- A pod that is not ready yet gets no tier: it would take a place that a ready one could fill.
if not tier then
  if ready ~= '1' then return found end
  tier = assign_tier(ARGV[9])
  write_tier(name, tier)
end
redis.call('SADD', pool_of(tier).assigned, name)
redis.call('HSET', pod, 'uid', uid, 'ready', ready, 'source', 'kubernetes', unpack(ARGV, 11))
if deleting == '1' then
  redis.call('HSET', pod, 'leaving', '1')
elseif redis.call('HEXISTS', pod, 'boot_id') == 0 then
  redis.call('HSET', pod, 'leaving', '0')
end
local version = redis.call('HGET', pod, 'version')
if is_new and version and version ~= '' then redis.call('SET', base .. 'version', version) end
if ARGV[10] == '1' and redis.call('HEXISTS', pod, 'boot_id') == 0 then redis.call('HSET', pod, 'epoch', (epoch())) end
found[3], found[2] = settle(name, tier)
return found
