-- Chooses a pod for an answered call, or for a dial.
-- Unusable pods are skipped; this many of them at the head of the order end the search.
local CANDIDATES_MAX = 32

-- For how many ms routers have received heartbeats without a gap; 0 while no router ran for longer than the gap allows:
-- then silence proves nothing.
local HEARING_GAP_MS, SILENT_MIN_MS = 15000, 15000
local receiving_ms
local function receiving_for_ms()
  if receiving_ms then return receiving_ms end
  local since, ran = unpack(redis.call('HMGET', key('hearing'), 'since', 'ran'))
  local is_receiving = since and math.abs(now_ms - tonumber(ran)) <= HEARING_GAP_MS
  receiving_ms = is_receiving and now_ms - tonumber(since) or 0
  return receiving_ms
end

-- No heartbeat for three of the pod's own intervals, at least 15 s, while routers received others. A pod that never sends
-- any is not silent.
local function is_silent(pod, interval_s)
  local limit_ms = math.max(SILENT_MIN_MS, 3000 * tonumber(interval_s or '5'))
  if receiving_for_ms() < limit_ms then return false end
  local heard_ms = redis.call('ZSCORE', key('heartbeats'), pod)
  return heard_ms and now_ms - tonumber(heard_ms) > limit_ms
end

-- 'usable': it may be taken. 'later': it drains, or for a dial Postgres does not have it yet; it keeps its position.
-- 'silent': it leaves the free ones, and answered calls try it when no other pod is free. 'never': it sent no heartbeat in
-- this epoch and comes back with its next one, or it has a lease and does not belong among the free.
local base_url, incarnation = '', '0'
local function check_pod(pod, shared, for_dial, may_be_silent)
  local known_epoch, leaving, ready, url, number, interval_s, changing, heard_ms = unpack(redis.call('HMGET', key('pod', pod),
    'epoch', 'leaving', 'ready', 'base_url', 'incarnation', 'interval_s', 'changing', 'heard_ms'))
  base_url, incarnation = url or '', number or '0'
  if known_epoch ~= epoch() or leaving == '1' or ready == '0' or changing == '1' then return 'never' end
  -- Nearly always there is none of these: one command for all.
  if redis.call('EXISTS', key('pod:draining', pod), shared and key('pod:draining', pod) or key('lease', pod),
    shared and key('pod:draining', pod) or key('pod:slots', pod)) > 0 then
    if redis.call('EXISTS', key('pod:draining', pod)) == 1 then return 'later' end
    return 'never'
  end
  local is_heard = heard_ms and math.abs(now_ms - tonumber(heard_ms)) < SILENT_MIN_MS
  if not may_be_silent and not is_heard and is_silent(pod, interval_s) then return 'silent' end
  if for_dial and incarnation == '0' then return 'later' end
  return 'usable'
end

local function mark_silent(pool, pod)
  take_out(pool, pod)
  redis.call('SADD', pool.silent, pod)
end

-- Takes the pod out of the SET if it may be taken, or never belonged there.
local function try_take(pool, pod, for_dial)
  local found = check_pod(pod, false, for_dial)
  if found == 'later' then redis.call('SADD', pool.available, pod) end
  if found == 'silent' then mark_silent(pool, pod) end
  return found
end

local function longest_free(pool, for_dial)
  local later, chosen = {}, nil
  for _ = 1, CANDIDATES_MAX do
    local pod = redis.call('ZPOPMIN', pool.order)[1]
    if not pod then break end
    if redis.call('SREM', pool.available, pod) == 1 then
      local found = try_take(pool, pod, for_dial)
      if found == 'usable' then chosen = pod break end
      if found == 'later' then later[#later + 1] = pod end
    end
  end
  for _, pod in ipairs(later) do redis.call('ZADD', pool.order, whole(now_ms), pod) end
  if chosen then return chosen end
  -- An operator put pods into the SET by hand, or the order was lost.
  for _, pod in ipairs(redis.call('SRANDMEMBER', pool.available, CANDIDATES_MAX)) do
    redis.call('SREM', pool.available, pod)
    if try_take(pool, pod, for_dial) == 'usable' then
      redis.call('ZREM', pool.order, pod)
      return pod
    end
  end
end

local function least_loaded(pool, max, for_dial)
  local newest, first, first_load, first_url, first_number = redis.call('GET', key('version')), nil, nil, '', '0'
  for page = 0, 7 do
    local found = redis.call('ZRANGE', pool.available, '-inf', '(' .. max, 'BYSCORE', 'LIMIT', page * CANDIDATES_MAX, CANDIDATES_MAX, 'WITHSCORES')
    for i = 1, #found, 2 do
      if first and tonumber(found[i + 1]) > first_load then
        base_url, incarnation = first_url, first_number
        return first
      end
      local state = check_pod(found[i], true, for_dial)
      if state == 'never' then redis.call('ZREM', pool.available, found[i]) end
      if state == 'silent' then mark_silent(pool, found[i]) end
      if state == 'usable' then
        if not newest or redis.call('HGET', key('pod', found[i]), 'version') == newest then return found[i] end
        if not first then
          first, first_load, first_url, first_number = found[i], tonumber(found[i + 1]), base_url, incarnation
        end
      end
    end
    if first or #found < CANDIDATES_MAX * 2 then
      base_url, incarnation = first_url, first_number
      return first
    end
  end
end

-- A pod of this tier and a slot of it, taken out of the free ones; nil if there is none.
local function choose(tier, for_dial)
  -- While a tier changes its type its key has the old one: the leader will rewrite it.
  if not fits(tier.pool, tier.shared) then return nil end
  local pod
  if tier.shared then pod = least_loaded(tier.pool, tier.max, for_dial) else pod = longest_free(tier.pool, for_dial) end
  if not pod then return nil end
  local slot = not tier.shared and 1 or free_slot(pod, tier.max)
  if slot and tier.shared then redis.call('ZINCRBY', tier.pool.available, 1, pod) end
  return slot and pod, slot
end

-- When no other pod is free: a silent pod may still work.
local function choose_silent(tier)
  for _, pod in ipairs(redis.call('SRANDMEMBER', tier.pool.silent, CANDIDATES_MAX)) do
    local slot = check_pod(pod, tier.shared, false, true) == 'usable' and free_slot(pod, tier.max)
    if slot then
      redis.call('SREM', tier.pool.silent, pod)
      return pod, slot
    end
  end
end

-- The existing tiers of this merchant, in order and without repeats; 1 if its config names none that exists.
local function chain(merchant)
  local wanted, is_misconfigured = 'standard', 0
  local text = merchant ~= '' and redis.call('HGET', key('merchant:config'), merchant)
  if text then
    local is_json, config = pcall(cjson.decode, text)
    local tier = is_json and type(config) == 'table' and config.tier
    if tier == 'dedicated' then
      local own = type(config.pool) == 'string' and config.pool ~= '' and config.pool or merchant
      tier = 'merchant:' .. own
    end
    if type(tier) == 'string' then wanted = tier else is_misconfigured = 1 end
  end
  local names, tiers, seen = {wanted, 'standard', 'overflow', 'basic'}, {}, {}
  local texts = redis.call('HMGET', key('tiers'), unpack(names))
  for i, tier in ipairs(names) do
    local kind, max, callers = string.match(texts[i] or '', '^(%a)|%d+|(%d+)|?(%d*)$')
    if kind and not seen[tier] then
      tiers[#tiers + 1] = {pool = pool_of(tier), shared = kind == 's', max = tonumber(max), callers = tonumber(callers)}
    elseif not kind and i == 1 then
      is_misconfigured = 1
    end
    seen[tier] = true
  end
  return tiers, is_misconfigured
end
