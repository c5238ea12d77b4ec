-- Pods, pools and calls, as every script of the router sees them.
-- KEYS[1] epoch  ARGV[1] key prefix  ARGV[2] run id of the server, '' if the caller does not know it
local base = ARGV[1]
local time = redis.call('TIME')
local now_s, now_ms = time[1], time[1] * 1000 + math.floor(time[2] / 1000)

local function whole(number) return string.format('%.0f', number) end
local function pod_key(name) return base .. 'pod:' .. name end
local function lease_key(name) return base .. 'lease:' .. name end
local function call_key(sid) return base .. 'call:' .. sid end
local function draining_key(name) return base .. 'pod:draining:' .. name end
local function held_key(name) return base .. 'pod:calls:' .. name end

-- Memory counts in the life of the server it was written in. When it is lost (another run id, or no epoch at all) the
-- next script to run begins an epoch: pods are then unknown until they were heard again, and the leader's term is gone.
-- @include run_id
local epoch_id, epoch_began_ms
local function epoch()
  if epoch_id then return epoch_id, epoch_began_ms end
  local run_id = ARGV[2] ~= '' and ARGV[2] or server_run_id()
  local known = redis.call('HMGET', KEYS[1], 'run_id', 'id', 'began_ms')
  if known[1] == run_id and known[2] then
    epoch_id, epoch_began_ms = known[2], tonumber(known[3] or '0')
  else
    -- Of one life no two begin in the same microsecond.
    epoch_id, epoch_began_ms = run_id .. '.' .. time[1] .. '.' .. time[2], now_ms
    redis.call('DEL', KEYS[1])
    redis.call('HSET', KEYS[1], 'run_id', run_id, 'id', epoch_id, 'began_ms', whole(now_ms))
  end
  return epoch_id, epoch_began_ms
end

-- Which tiers there are is what the leader published, never what one process was told: `e|target|1` or `s|target|max`.
local function tier_config(tier)
  local text = redis.call('HGET', base .. 'tiers', tier)
  if not text then return nil end
  local kind, target, max = string.match(text, '^(%a)|(%d+)|(%d+)$')
  return {shared = kind == 's', target = tonumber(target), max = tonumber(max)}
end

-- A merchant's own pool has names of its own.
local function pool_of(tier)
  local merchant = string.match(tier, '^merchant:(.+)$')
  local root = base .. (merchant and 'merchant:' .. merchant or 'pool:' .. tier)
  return {
    tier = tier,
    source = merchant and tier or 'pool:' .. tier,
    available = root .. (merchant and ':pods' or ':available'),
    assigned = root .. ':assigned',
    order = root .. ':order',
    waiting = root .. ':waiting',
  }
end

local function tier_of_source(source) return string.match(source, '^pool:(.+)$') or source end

local function holder_of(sid) return redis.call('HGET', call_key(sid), 'pod_name') end

-- The calls that have this pod. The call's own record is the truth; a member without one was reset by hand or ran out.
local function held_calls(name)
  local found = {}
  for _, sid in ipairs(redis.call('SMEMBERS', held_key(name))) do
    if holder_of(sid) == name then
      found[#found + 1] = sid
    else
      redis.call('SREM', held_key(name), sid)
    end
  end
  return found
end

local function hold_call(name, sid, lease_s)
  redis.call('SADD', held_key(name), sid)
  redis.call('SET', lease_key(name), sid, 'EX', lease_s)
  redis.call('ZADD', base .. 'calls', 'NX', whole(now_ms), sid)
end

-- Ends what the router knows of a call at a pod; `holder` has the call, which may be another pod. Of several calls at a
-- shared pod another one then gives the lease.
local function end_allocation(name, sid, holder)
  if holder == name then
    redis.call('DEL', call_key(sid))
    redis.call('ZREM', base .. 'calls', sid)
  end
  redis.call('SREM', held_key(name), sid)
  redis.call('ZREM', base .. 'unnamed', sid)
  if redis.call('GET', lease_key(name)) == sid then
    local other = redis.call('SRANDMEMBER', held_key(name))
    if other then
      redis.call('SET', lease_key(name), other, 'EX', math.max(1, redis.call('TTL', call_key(other))))
    else
      redis.call('DEL', lease_key(name))
    end
  end
  if redis.call('HGET', pod_key(name), 'allocated_call_sid') == sid then
    redis.call('HDEL', pod_key(name), 'allocated_call_sid', 'allocated_at')
    redis.call('HSET', pod_key(name), 'released_at', now_s)
  end
end

local function is_draining(name)
  return redis.call('EXISTS', draining_key(name)) == 1
    or redis.call('HGET', pod_key(name), 'leaving') == '1'
end

-- Newer versions first, then the one that is free longest: older versions stand behind every newer one.
local function rank_of(version)
  local newest = redis.call('GET', base .. 'version')
  return whole((newest and version and version ~= newest) and now_ms + 1e13 or now_ms)
end

local function take_out(pool, name)
  -- Either type: a tier may have become another one since this pod came in.
  local kind = redis.call('TYPE', pool.available).ok
  if kind == 'set' then redis.call('SREM', pool.available, name)
  elseif kind == 'zset' then redis.call('ZREM', pool.available, name) end
  redis.call('ZREM', pool.order, name)
end

-- Whether a tier's key has the type that its config says; an empty one has any.
local function fits(pool, shared)
  local kind = redis.call('TYPE', pool.available).ok
  return kind == 'none' or kind == (shared and 'zset' or 'set')
end

local function write_tier(name, tier)
  redis.call('SET', base .. 'pod:tier:' .. name, tier)
  redis.call('SADD', pool_of(tier).assigned, name)
  redis.call('HSET', base .. 'pod:metadata', name, cjson.encode({tier = tier, name = name}))
end

local function leave_tier(name, tier)
  local pool = pool_of(tier)
  take_out(pool, name)
  redis.call('SREM', pool.assigned, name)
end

-- The documented order: merchants' pools, gold, shared pools, further ones, standard, overflow; then standard.
local function assign_tier(durable)
  if durable ~= '' and redis.call('HEXISTS', base .. 'tiers', durable) == 1 then return durable end
  for tier in string.gmatch(redis.call('HGET', base .. 'tiers', '#order') or '', '%S+') do
    local config = tier_config(tier)
    if config and redis.call('SCARD', pool_of(tier).assigned) < config.target then return tier end
  end
  return 'standard'
end

-- Where a pod stands, decided in one place from everything that is known of it: the calls that have it, the calls that
-- it named itself, whether it drains, is ready, and was heard in this epoch. Returns its status, tier and whether it drains.
local function settle(name, tier)
  local pod = pod_key(name)
  local named, known_epoch, ready, version, move, leaving =
    unpack(redis.call('HMGET', pod, 'calls', 'epoch', 'ready', 'version', 'move_to', 'leaving'))
  -- Nearly always there is neither: one question for both.
  local is_marked = redis.call('EXISTS', lease_key(name), draining_key(name)) > 0
  local leased = is_marked and redis.call('EXISTS', lease_key(name)) == 1
  local drains = leaving == '1' or (is_marked and redis.call('EXISTS', draining_key(name)) == 1)
  local held = held_calls(name)
  local load, is_held = #held, {}
  for _, sid in ipairs(held) do is_held[sid] = true end
  for sid in string.gmatch(named or '', '%S+') do
    if not is_held[sid] then load = load + 1 end
  end
  if move and load == 0 and not leased then
    leave_tier(name, tier)
    tier = redis.call('HEXISTS', base .. 'tiers', move) == 1 and move or 'standard'
    redis.call('HDEL', pod, 'move_to')
    write_tier(name, tier)
  end
  local config, pool = tier_config(tier) or {shared = false, max = 1}, pool_of(tier)
  local status = 'available'
  if leased or #held > 0 then status = 'allocated'
  elseif load > 0 then status = 'ending'
  elseif drains then status = 'draining'
  elseif ready == '0' then status = 'unready'
  elseif known_epoch ~= epoch() then status = 'unknown' end
  redis.call('HSET', pod, 'status', status)
  if not fits(pool, config.shared) then return status, tier, drains end
  if config.shared then
    if drains or ready == '0' or known_epoch ~= epoch() then
      redis.call('ZREM', pool.available, name)
    else
      redis.call('ZADD', pool.available, load, name)
    end
  elseif status == 'available' then
    redis.call('SADD', pool.available, name)
    redis.call('ZADD', pool.order, 'NX', rank_of(version), name)
  else
    redis.call('SREM', pool.available, name)
    redis.call('ZREM', pool.order, name)
  end
  return status, tier, drains
end

-- A call that waited for a pod waits no longer.
local function stop_waiting(sid)
  local tiers = redis.call('HGET', base .. 'waiters', sid)
  if not tiers then return end
  for tier in string.gmatch(tiers, '%S+') do redis.call('ZREM', pool_of(tier).waiting, sid) end
  redis.call('HDEL', base .. 'waiters', sid)
  redis.call('ZREM', base .. 'waiting', sid)
end
