-- Pods, pools and calls, for all scripts of the router.
-- KEYS[1] epoch  ARGV[1] key prefix  ARGV[2] run id of the server, '' if the caller does not know it
-- @include keys
local time = redis.call('TIME')
local now_s, now_ms = time[1], time[1] * 1000 + math.floor(time[2] / 1000)

local function whole(number) return string.format('%.0f', number) end

-- A projection is valid in the server run it was written in. When it is lost (another run id, or no epoch at all) the next
-- script to run begins an epoch: pods are then unknown until their next heartbeat, and the leader's term is gone.
-- @include run_id
-- Until the leader has compared it with Postgres (`rebuilt`) it allocates no pod.
local epoch_id, epoch_began_ms, is_rebuilt
local function epoch()
  if epoch_id then return epoch_id, epoch_began_ms end
  local run_id = ARGV[2] ~= '' and ARGV[2] or server_run_id()
  local known = redis.call('HMGET', KEYS[1], 'run_id', 'id', 'began_ms', 'rebuilt')
  if known[1] == run_id and known[2] then
    epoch_id, epoch_began_ms, is_rebuilt = known[2], tonumber(known[3] or '0'), known[4] == '1'
  else
    -- Of one run no two begin in the same microsecond.
    epoch_id, epoch_began_ms = run_id .. '.' .. time[1] .. '.' .. time[2], now_ms
    redis.call('DEL', KEYS[1])
    redis.call('HSET', KEYS[1], 'run_id', run_id, 'id', epoch_id, 'began_ms', whole(now_ms))
  end
  return epoch_id, epoch_began_ms
end

-- The leader publishes the tiers; the settings of one process do not count: `e|target|1` or `s|target|max`, and `|callers`
-- after it if the config sets how many slots no dial may reserve.
local function tier_config(tier)
  local text = redis.call('HGET', key('tiers'), tier)
  if not text then return nil end
  local kind, target, max = string.match(text, '^(%a)|(%d+)|(%d+)')
  return {shared = kind == 's', target = tonumber(target), max = tonumber(max)}
end

-- @include router_pools
local function tier_of_source(source) return string.match(source, '^pool:(.+)$') or source end

local function holder_of(sid) return redis.call('HGET', key('call', sid), 'pod_name') end

-- The calls that have this pod. The call's own record is the truth; a member without one was reset by hand or expired.
local function held_calls(name)
  local found = {}
  for _, sid in ipairs(redis.call('SMEMBERS', key('pod:calls', name))) do
    if holder_of(sid) == name then
      found[#found + 1] = sid
    else
      redis.call('SREM', key('pod:calls', name), sid)
    end
  end
  return found
end

local function hold_call(name, sid, lease_s)
  redis.call('SADD', key('pod:calls', name), sid)
  redis.call('SET', key('lease', name), sid, 'EX', lease_s)
  redis.call('ZADD', key('calls'), 'NX', whole(now_ms), sid)
end

-- Handlers of ended calls that hang, as the pod reports: it takes that many calls fewer.
local function hanging_at(text) return select(2, string.gsub(text or '', '%S+', '')) end

-- Slots are numbered from 1. An exclusive pod has slot 1 alone. Takes the lowest free one: Postgres gives no other where
-- handlers hang.
local function free_slot(name, max)
  max = max - hanging_at(redis.call('HGET', key('pod', name), 'hanging'))
  if max < 1 then return nil end
  local taken = redis.call('HKEYS', key('pod:slots', name))
  if #taken == 0 then return 1 end
  if #taken >= max then return nil end
  local is_taken = {}
  for _, slot in ipairs(taken) do is_taken[slot] = true end
  for slot = 1, max do
    if not is_taken[tostring(slot)] then return slot end
  end
end

-- Stands for the allocation of a call that only its pod's heartbeat has reported.
local function heard_id(sid) return 'heard:' .. sid end

local function give_slot(name, slot, id)
  if slot and redis.call('HGET', key('pod:slots', name), slot) == id then redis.call('HDEL', key('pod:slots', name), slot) end
end

-- Ends the reservation of a slot for a dial. Returns its pod, or nil if there is none under this id.
local function unkeep(id)
  local name, slot, source = unpack(redis.call('HMGET', key('kept', id), 'pod', 'slot', 'source_pool'))
  if not name then return nil end
  redis.call('DEL', key('kept', id))
  redis.call('ZREM', key('kept'), id)
  redis.call('ZREM', pool_of(tier_of_source(source or '')).kept, id)
  redis.call('ZREM', key('unproven'), id)
  give_slot(name, slot, id)
  return name
end

-- Ends a call's allocation to a pod; `holder` has the call, which may be another pod. Another call of a shared pod then
-- gives the lease.
local function end_allocation(name, sid, holder)
  if holder == name then
    local id, slot, waited, source =
      unpack(redis.call('HMGET', key('call', sid), 'allocation_id', 'slot', 'waited', 'source_pool'))
    give_slot(name, slot, id or heard_id(sid))
    if id then
      redis.call('DEL', key('begun', id))
      redis.call('ZREM', key('unproven'), id)
    end
    if waited then redis.call('SREM', pool_of(tier_of_source(source or '')).yielded, sid) end
    redis.call('DEL', key('call', sid))
    redis.call('ZREM', key('calls'), sid)
  end
  redis.call('SREM', key('pod:calls', name), sid)
  if redis.call('GET', key('lease', name)) == sid then
    local other = redis.call('SRANDMEMBER', key('pod:calls', name))
    if other then
      redis.call('SET', key('lease', name), other, 'EX', math.max(1, redis.call('TTL', key('call', other))))
    else
      redis.call('DEL', key('lease', name))
    end
  end
  if redis.call('HGET', key('pod', name), 'allocated_call_sid') == sid then
    redis.call('HDEL', key('pod', name), 'allocated_call_sid', 'allocated_at')
    redis.call('HSET', key('pod', name), 'released_at', now_s)
  end
end

-- Ends what an allocation id stands for: reserved, begun, or a slot that Postgres gave it. Returns the pod.
local function end_by_id(id, tombstone_s)
  local name = unkeep(id)
  if name then return name end
  local sid = redis.call('GET', key('begun', id))
  if not sid then return nil end
  local holder, known = unpack(redis.call('HMGET', key('call', sid), 'pod_name', 'allocation_id'))
  redis.call('DEL', key('begun', id))
  redis.call('ZREM', key('unproven'), id)
  if not holder or known ~= id then return nil end
  if tombstone_s > 0 then redis.call('SET', key('ended', sid), '1', 'EX', tombstone_s) end
  end_allocation(holder, sid, holder)
  return holder
end

local function is_draining(name)
  return redis.call('EXISTS', key('pod:draining', name)) == 1
    or redis.call('HGET', key('pod', name), 'leaving') == '1'
end

-- Newer versions first, then the one that is free longest: older versions come after every newer one.
local function rank_of(version)
  local newest = redis.call('GET', key('version'))
  return whole((newest and version and version ~= newest) and now_ms + 1e13 or now_ms)
end

local function take_out(pool, name)
  -- Either type: the tier's type may have changed since this pod came in.
  local kind = redis.call('TYPE', pool.available).ok
  if kind == 'set' then redis.call('SREM', pool.available, name)
  elseif kind == 'zset' then redis.call('ZREM', pool.available, name) end
  redis.call('ZREM', pool.order, name)
  redis.call('SREM', pool.silent, name)
end

-- Whether a tier's key has the type of its config; an empty one fits any.
local function fits(pool, shared)
  local kind = redis.call('TYPE', pool.available).ok
  return kind == 'none' or kind == (shared and 'zset' or 'set')
end

local function write_tier(name, tier)
  redis.call('SET', key('pod:tier', name), tier)
  redis.call('SADD', pool_of(tier).assigned, name)
  redis.call('HSET', key('pod:metadata'), name, cjson.encode({tier = tier, name = name}))
end

local function leave_tier(name, tier)
  local pool = pool_of(tier)
  take_out(pool, name)
  redis.call('SREM', pool.assigned, name)
  redis.call('SREM', pool.leaving, name)
end

-- The pod sent a heartbeat and says whether it stays: a leaving pod fills no target.
local function note_presence(pool, name, leaving)
  redis.call(leaving == '1' and 'SADD' or 'SREM', pool.leaving, name)
  redis.call('SREM', pool.silent, name)
end

-- The documented order: merchants' pools, gold, shared pools, further ones, standard, overflow; then standard.
local function assign_tier(durable)
  if durable ~= '' and redis.call('HEXISTS', key('tiers'), durable) == 1 then return durable end
  for tier in string.gmatch(redis.call('HGET', key('tiers'), '#order') or '', '%S+') do
    local config = tier_config(tier)
    local pool = pool_of(tier)
    -- A leaving pod fills no target.
    local staying = config and redis.call('SCARD', pool.assigned) - redis.call('SCARD', pool.leaving)
    if config and staying < config.target then return tier end
  end
  return 'standard'
end

-- An operator's reset, as the operations sheet describes it: lease and call record are deleted and the status is set to
-- `available`. Nothing of ours does that while the slot is taken, and keys that are merely missing leave the status. The
-- leader ends the rows in Postgres.
local function adopt_reset(name, slots)
  local is_reset, leased = false, redis.call('GET', key('lease', name))
  for i = 1, #slots, 2 do
    local id = slots[i + 1]
    local sid = redis.call('GET', key('begun', id))
    if sid and sid ~= leased and redis.call('EXISTS', key('call', sid)) == 0 then
      redis.call('HDEL', key('pod:slots', name), slots[i])
      redis.call('DEL', key('begun', id))
      redis.call('ZREM', key('unproven'), id)
      redis.call('ZREM', key('calls'), sid)
      redis.call('SREM', key('pod:calls', name), sid)
      redis.call('HSET', key('resets'), id, sid .. ' ' .. name)
      is_reset = true
    end
  end
  return is_reset
end

-- Decides a pod's status, in one place and from all its state: its slots, the calls that it named itself, its handlers that
-- hang, whether it drains, is ready, and sent a heartbeat in this epoch. Returns its status, tier and whether it drains, and
-- 1 if it came to have a free slot while dials wait for agents.
local function settle(name, tier)
  local pod = key('pod', name)
  local named, known_epoch, ready, version, leaving, changing, status_before, hanging =
    unpack(redis.call('HMGET', pod, 'calls', 'epoch', 'ready', 'version', 'leaving', 'changing', 'status', 'hanging'))
  -- Nearly always there is neither: one command for both.
  local is_marked = redis.call('EXISTS', key('lease', name), key('pod:draining', name)) > 0
  local leased = is_marked and redis.call('EXISTS', key('lease', name)) == 1
  local drains = leaving == '1' or (is_marked and redis.call('EXISTS', key('pod:draining', name)) == 1)
  local slots = redis.call('HGETALL', key('pod:slots', name))
  if status_before == 'available' and #slots > 0 and adopt_reset(name, slots) then
    slots = redis.call('HGETALL', key('pod:slots', name))
  end
  local held, is_held = held_calls(name), {}
  local load = #slots / 2
  for _, sid in ipairs(held) do is_held[sid] = true end
  for sid in string.gmatch(named or '', '%S+') do
    if not is_held[sid] then load = load + 1 end
  end
  local config, pool = tier_config(tier) or {shared = false, max = 1}, pool_of(tier)
  local hangs = hanging_at(hanging)
  local status = 'available'
  if leased or #held > 0 then status = 'allocated'
  elseif #slots > 0 then status = 'kept'
  elseif load > 0 then status = 'ending'
  elseif drains then status = 'draining'
  elseif hangs >= config.max then status = 'ending'
  elseif ready == '0' or changing == '1' then status = 'unready'
  elseif known_epoch ~= epoch() then status = 'unknown' end
  if status == 'kept' and status_before == 'allocated' then
    -- Its call record was deleted, and no heartbeat or release has freed the pod.
    for i = 2, #slots, 2 do
      if redis.call('EXISTS', key('begun', slots[i])) == 1 then status = 'allocated' end
    end
  end
  redis.call('HSET', pod, 'status', status)
  load = load + hangs
  if not fits(pool, config.shared) then return status, tier, drains, 0 end
  local is_free = false
  if config.shared then
    if drains or ready == '0' or changing == '1' or known_epoch ~= epoch() then
      redis.call('ZREM', pool.available, name)
    else
      redis.call('ZADD', pool.available, load, name)
      is_free = load < config.max
    end
  elseif status == 'available' then
    is_free = redis.call('SADD', pool.available, name) == 1
    redis.call('ZADD', pool.order, 'NX', rank_of(version), name)
  else
    redis.call('SREM', pool.available, name)
    redis.call('ZREM', pool.order, name)
  end
  local wakes = is_free and redis.call('EXISTS', key('dials:waiting')) == 1
  return status, tier, drains, wakes and 1 or 0
end

-- Removes a call from the queue for a pod. Its record: tiers, a line break, its merchant.
local function stop_waiting(sid)
  local text = redis.call('HGET', key('waiters'), sid)
  if not text then return end
  local tiers, merchant = string.match(text, '^([^\n]*)\n?(.*)$')
  for tier in string.gmatch(tiers, '%S+') do
    local pool = pool_of(tier)
    if redis.call('ZREM', pool.waiting, sid) == 1 and redis.call('HINCRBY', pool.waiting_merchants, merchant, -1) <= 0 then
      redis.call('HDEL', pool.waiting_merchants, merchant)
    end
  end
  redis.call('HDEL', key('waiters'), sid)
  redis.call('ZREM', key('waiting'), sid)
end
