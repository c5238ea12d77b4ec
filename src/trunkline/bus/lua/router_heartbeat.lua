#!lua
-- A pod says that it lives, which calls it holds, and whether it is leaving. A new pod gets its tier; a pod that has
-- nothing to do is free. So every heartbeat also heals: a pod that fell out of the pool comes back with its next one,
-- and a busy pod comes back busy after this server lost its memory.
-- Within one boot of the pod an older sequence number is ignored. Another boot id means that the process before it
-- died with its calls: the allocations end without a tombstone, since the carrier's calls may still want a pod.
-- After a loss of memory an idle pod is believed only once its heartbeat began long enough after the loss: before that
-- it may have been given a call that has not connected yet. The first heartbeat of a boot is believed at once.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] pod  ARGV[4] boot id  ARGV[5] sequence
-- ARGV[6] 1 if the pod is leaving  ARGV[7] the calls it holds, separated by spaces  ARGV[8] its durable tier, '' for
-- none, '?' if the caller has not asked for it: then nothing of the pod is written and '?' is the answer, if needed
-- ARGV[9] 1 if an unknown pod may register itself  ARGV[10] lease in s  ARGV[11] tombstone in s
-- ARGV[12] ms after a loss before an idle pod is believed  ARGV[13] tiers, should none be published: name=text …
-- ARGV[14..] further fields of the pod: name, value, …
-- -> {1 if it was news, tier, 1 if draining, the calls that have the pod …, as one text, epoch id,
--     ms until it should be heard again, 0: as usual; the most calls it may have}
-- @include router
local name, boot, sequence, leaving, named = ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7]
local lease_s, tombstone_s, settle_ms = ARGV[10], ARGV[11], tonumber(ARGV[12])
local pod = pod_key(name)

local function publish_missing_tiers()
  if redis.call('EXISTS', base .. 'tiers') == 1 then return end
  for tier, text in string.gmatch(ARGV[13], '(%S+)=(%S+)') do
    redis.call('HSET', base .. 'tiers', tier, (string.gsub(text, ',', ' ')))
  end
end

local function names(sid) return string.find(' ' .. named .. ' ', ' ' .. sid .. ' ', 1, true) ~= nil end

local function answer(news, tier, again_ms)
  local config = tier_config(tier) or {max = 1}
  return {news, tier, is_draining(name) and 1 or 0, table.concat(held_calls(name), ' '), epoch(), again_ms, config.max}
end

-- What the pod named before and does not name now has ended there, even if its release was lost on the way.
local function end_dropped(before)
  for sid in string.gmatch(before, '%S+') do
    if not names(sid) and holder_of(sid) == name then
      redis.call('SET', base .. 'ended:' .. sid, '1', 'EX', tombstone_s)
      end_allocation(name, sid, name)
    end
  end
end

-- A call that the pod names and that is its own has come.
local function join()
  for sid in string.gmatch(named, '%S+') do
    if holder_of(sid) == name then
      redis.call('HDEL', call_key(sid), 'unnamed')
      redis.call('ZREM', base .. 'unnamed', sid)
    end
  end
end

-- A call that the pod holds and nobody has recorded, while memory is lost and Postgres has not been read. Afterwards a pod
-- that names a call which is not its own is `ending`: its call may be over, and is not revived.
local function restore(source, max)
  if is_rebuilt then return end
  for sid in string.gmatch(named, '%S+') do
    local record = call_key(sid)
    local slot = not redis.call('HGET', record, 'pod_name') and free_slot(name, max)
    if slot and redis.call('EXISTS', base .. 'ended:' .. sid) == 0 then
      redis.call('HSET', record, 'pod_name', name, 'source_pool', source, 'merchant_id', '', 'allocated_at', now_s,
        'slot', slot, 'incarnation', redis.call('HGET', pod, 'incarnation') or '0')
      redis.call('EXPIRE', record, lease_s)
      redis.call('HSET', slots_key(name), slot, heard_id(sid))
      hold_call(name, sid, lease_s)
      redis.call('HSET', pod, 'allocated_call_sid', sid, 'allocated_at', now_s, 'source_pool', source)
    end
  end
end

-- Two heartbeats begun 30 s after the allocation that do not name the call: the leader shall ask where it is.
local function suspect_unnamed()
  for _, sid in ipairs(held_calls(name)) do
    local allocated_at = tonumber(redis.call('HGET', call_key(sid), 'allocated_at') or now_s)
    if not names(sid) and now_s - allocated_at > 30 and redis.call('HINCRBY', call_key(sid), 'unnamed', 1) >= 2 then
      redis.call('ZADD', base .. 'unnamed', 'NX', whole(now_ms), sid)
    end
  end
end

local function remember(tier, is_new)
  redis.call('ZADD', base .. 'heartbeats', whole(now_ms), name)
  redis.call('HSET', pod, 'boot_id', boot, 'sequence', ARGV[5], 'leaving', leaving, 'calls', named, unpack(ARGV, 14))
  local version = redis.call('HGET', pod, 'version')
  if is_new and version and version ~= '' then redis.call('SET', base .. 'version', version) end
end

local id, began_ms = epoch()
publish_missing_tiers()
local known_boot, known_sequence, before, known_epoch =
  unpack(redis.call('HMGET', pod, 'boot_id', 'sequence', 'calls', 'epoch'))
local tier = redis.call('GET', base .. 'pod:tier:' .. name)
if not tier and ARGV[9] ~= '1' then return {0, '', 0, '', id, 2000, 1} end
if not tier and ARGV[8] == '?' then return {0, '?', 0, '', id, 0, 1} end
if known_boot == boot and sequence <= tonumber(known_sequence) then return answer(0, tier or 'standard', 0) end

if known_boot == boot then
  end_dropped(before or '')
elseif known_boot then
  for _, orphan in ipairs(held_calls(name)) do
    if not names(orphan) then end_allocation(name, orphan, name) end
  end
end
if not tier then
  tier = assign_tier(ARGV[8])
  write_tier(name, tier)
end
redis.call('SADD', pool_of(tier).assigned, name)
remember(tier, known_boot ~= boot)

local again_ms = 0
if known_epoch ~= id then
  if sequence == 1 or now_ms - began_ms >= settle_ms then
    redis.call('HSET', pod, 'epoch', id)
  else
    again_ms = settle_ms - (now_ms - began_ms)
  end
end
join()
restore(pool_of(tier).source, (tier_config(tier) or {max = 1}).max)
suspect_unnamed()
local _, settled_tier = settle(name, tier)
return answer(1, settled_tier, again_ms)
