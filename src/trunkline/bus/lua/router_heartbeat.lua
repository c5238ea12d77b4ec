#!lua
-- A pod's heartbeat: the calls that it holds, and whether it is leaving. A pod without calls is free. So every heartbeat
-- also heals: a pod that fell out of the pool comes back with its next one.
-- The boot id identifies the process of a pod; which of two is newer only Postgres knows, by the number that it assigned
-- (the incarnation). So an unknown boot id is registered there first. While Postgres is unavailable, a boot id without
-- earlier heartbeats counts as the newer one. Within one boot an older sequence number is ignored.
-- After a loss of the projection an idle pod counts as free once the leader has rebuilt it from Postgres. Until then, and
-- without Postgres, only if its heartbeat began long enough after the loss: before that it may have been given a call that
-- has not connected yet. The first heartbeat of a boot counts at once, and so does a pod that Postgres never had.
--
-- KEYS[1] epoch
-- @keys ARGV[3]: pod pod:tier pod:draining pod:calls pod:slots lease superseded
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] pod  ARGV[4] boot id  ARGV[5] sequence
-- ARGV[6] 1 if the pod is leaving  ARGV[7] the calls it holds, separated by spaces
-- ARGV[8] its incarnation; '?' if Postgres was not queried; 0 if it is unavailable  ARGV[9] its tier in Postgres, '' for none
-- ARGV[10] 1 if Postgres never had the pod  ARGV[11] boot ids before this one, as JSON  ARGV[12] the newest version of all
-- ARGV[13] 1 if an unknown pod may register itself  ARGV[14] lease in s
-- ARGV[15] ms after a loss before an idle pod counts as free  ARGV[16] tiers, should none be published: name=text …
-- ARGV[17..] further fields of the pod: name, value, …
-- -> {'heard', 1 if it was new, tier, 1 if draining, the calls that have the pod …, as one text,
--     ms until its next heartbeat should come, 0: as usual; the most calls it may have, its incarnation,
--     1 if a slot came free while dials wait for agents}
--    {'register', tier, text, …}  Postgres has to be queried: the published tiers, '#order' among them
--    {'superseded', how often within two minutes}  a newer process has this name
-- @include router
local name, boot, sequence, leaving, named_calls = ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7]
local number, lease_s, settle_ms = ARGV[8], ARGV[14], tonumber(ARGV[15])
local pod = key('pod', name)

local function publish_missing_tiers()
  if redis.call('EXISTS', key('tiers')) == 1 then return end
  for tier, text in string.gmatch(ARGV[16], '(%S+)=(%S+)') do
    redis.call('HSET', key('tiers'), tier, (string.gsub(text, ',', ' ')))
  end
end

local function names(sid) return string.find(' ' .. named_calls .. ' ', ' ' .. sid .. ' ', 1, true) ~= nil end

local function superseded()
  local times = redis.call('INCR', key('superseded', name))
  redis.call('EXPIRE', key('superseded', name), 120)
  return {'superseded', times}
end

local function answer(news, tier, again_ms, wakes)
  local config = tier_config(tier) or {max = 1}
  return {'heard', news, tier, is_draining(name) and 1 or 0, table.concat(held_calls(name), ' '), again_ms, config.max,
    redis.call('HGET', pod, 'incarnation') or '0', wakes}
end

-- Ends the allocations of earlier processes. A call that the new one names is its own.
local function lose_slots()
  local slots = redis.call('HGETALL', key('pod:slots', name))
  for i = 1, #slots, 2 do
    local id = slots[i + 1]
    local sid = redis.call('GET', key('begun', id))
    if sid and names(sid) then
      redis.call('HSET', key('call', sid), 'incarnation', number)
    else
      local theirs = sid and redis.call('HGET', key('call', sid), 'incarnation') or redis.call('HGET', key('kept', id), 'incarnation')
      if tonumber(theirs or '0') < tonumber(number) or number == '0' then
        end_by_id(id, 0)
        redis.call('HDEL', key('pod:slots', name), slots[i])
      end
    end
  end
end

-- Records a call that the pod holds without a record, while the projection is lost and Postgres has not been read. Afterwards
-- a pod that names a call which is not its own is `ending`: the call may have ended, and is not revived.
local function restore(source, max)
  if is_rebuilt then return end
  for sid in string.gmatch(named_calls, '%S+') do
    local record = key('call', sid)
    local slot = not redis.call('HGET', record, 'pod_name') and free_slot(name, max)
    if slot and redis.call('EXISTS', key('ended', sid)) == 0 then
      redis.call('HSET', record, 'pod_name', name, 'source_pool', source, 'merchant_id', '', 'allocated_at', now_s,
        'slot', slot, 'incarnation', redis.call('HGET', pod, 'incarnation') or '0')
      redis.call('EXPIRE', record, lease_s)
      redis.call('HSET', key('pod:slots', name), slot, heard_id(sid))
      hold_call(name, sid, lease_s)
      redis.call('HSET', pod, 'allocated_call_sid', sid, 'allocated_at', now_s, 'source_pool', source)
    end
  end
end

local id, began_ms = epoch()
publish_missing_tiers()
local known_boot, known_sequence, known_epoch, known_number, past, reset =
  unpack(redis.call('HMGET', pod, 'boot_id', 'sequence', 'epoch', 'incarnation', 'past_boots', 'reset_calls'))
local tier = redis.call('GET', key('pod:tier', name))
known_number = tonumber(known_number or '0')
if known_boot and known_boot ~= boot and past then
  for _, before in ipairs(cjson.decode(past)) do
    if before == boot then return superseded() end
  end
end
if number == '?' then
  if not tier or known_boot ~= boot or known_number == 0 then
    local flat = redis.call('HGETALL', key('tiers'))
    table.insert(flat, 1, 'register')
    return flat
  end
  number = tostring(known_number)
end
if not tier and ARGV[9] == '' and ARGV[13] ~= '1' then return {'heard', 0, '', 0, '', 2000, 1, '0', 0} end
if tonumber(number) > 0 and known_number > tonumber(number) then return superseded() end
if known_boot == boot and sequence <= tonumber(known_sequence) and known_number == tonumber(number) then
  return answer(0, tier or 'standard', 0, 0)
end

-- Calls that an operator reset, while the pod still names them.
if reset and reset ~= '' then
  local own, theirs = {}, {}
  for sid in string.gmatch(named_calls, '%S+') do
    local list = string.find(' ' .. reset .. ' ', ' ' .. sid .. ' ', 1, true) and theirs or own
    list[#list + 1] = sid
  end
  named_calls = table.concat(own, ' ')
  redis.call('HSET', pod, 'reset_calls', table.concat(theirs, ' '))
end
if known_boot and known_boot ~= boot then
  lose_slots()
  redis.call('HDEL', pod, 'reset_calls')
  if number == '0' then
    local before = past and cjson.decode(past) or {}
    before[#before + 1] = known_boot
    while #before > 8 do table.remove(before, 1) end
    redis.call('HSET', pod, 'past_boots', cjson.encode(before))
  end
end
local given = ARGV[9] ~= '' and redis.call('HEXISTS', key('tiers'), ARGV[9]) == 1 and ARGV[9] or nil
if not tier or (given and given ~= tier) then
  if tier then leave_tier(name, tier) end
  tier = given or assign_tier(ARGV[9])
  write_tier(name, tier)
end
redis.call('SADD', pool_of(tier).assigned, name)
note_presence(pool_of(tier), name, leaving)
redis.call('ZADD', key('heartbeats'), whole(now_ms), name)
redis.call('HSET', pod, 'boot_id', boot, 'sequence', ARGV[5], 'leaving', leaving, 'calls', named_calls, 'incarnation', number,
  'heard_ms', whole(now_ms), unpack(ARGV, 17))
if ARGV[11] ~= '' then redis.call('HSET', pod, 'past_boots', ARGV[11]) end
if ARGV[12] ~= '' then redis.call('SET', key('version'), ARGV[12]) end

local again_ms = 0
if known_epoch ~= id then
  if (is_rebuilt and number ~= '0') or ARGV[10] == '1' or sequence == 1 or now_ms - began_ms >= settle_ms then
    redis.call('HSET', pod, 'epoch', id)
  else
    again_ms = settle_ms - (now_ms - began_ms)
  end
end
restore(pool_of(tier).source, (tier_config(tier) or {max = 1}).max)
local _, settled_tier, _, wakes = settle(name, tier)
return answer(1, settled_tier, again_ms, wakes)
