#!lua
-- Gives a call its pod, in one step: there is no moment in which a taken pod is recorded nowhere, and however many
-- requests for one call arrive at once, all of them get the same pod.
-- The merchant's tier is tried first, then standard, overflow and basic. Of an exclusive tier the pod that has been free
-- longest is taken (the order is a hint: a pod counts as free only if the SET has it), of a shared one the least loaded.
-- A call that may wait keeps its place by asking again; what is free belongs to those before it.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] call sid  ARGV[4] merchant  ARGV[5] allocation id
-- ARGV[6] lease in s  ARGV[7] the longest wait in ms, 0: none  ARGV[8] a waiter that is silent for so many ms has left
-- ARGV[9] the most waiters
-- -> {'allocated' | 'already', pod, source pool, allocated at, allocation id, base URL of the pod, 1 if the merchant's
--     config names no tier there is}
--    {'none', 1 if …}  no pod is free
--    {'hold', how many wait before it, ms it has waited}
--    {'ended'}  the call is over
-- @include router
local sid, merchant, allocation, lease_s = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local wait_max_ms, silence_ms, waiters_max = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local call = call_key(sid)
-- Pods that may not be taken are passed over; so many of them at the head of the order end the search.
local LOOKS = 32


-- 'usable': it may be taken. 'later': it drains, and keeps its place. 'never': it was not heard in this epoch and comes
-- back with its next heartbeat, or it has a lease and does not belong among the free.
local base_url = ''
local function look_at(pod, shared)
  local known_epoch, leaving, ready, url = unpack(redis.call('HMGET', pod_key(pod), 'epoch', 'leaving', 'ready', 'base_url'))
  base_url = url or ''
  if known_epoch ~= epoch() or leaving == '1' or ready == '0' then return 'never' end
  if shared then return redis.call('EXISTS', draining_key(pod)) == 0 and 'usable' or 'later' end
  if redis.call('EXISTS', lease_key(pod), draining_key(pod)) == 0 then return 'usable' end
  return redis.call('EXISTS', lease_key(pod)) == 0 and 'later' or 'never'
end

-- Takes the pod out of the SET if it may be taken, or never belonged there.
local function taken(pool, pod)
  local found = look_at(pod, false)
  if found == 'later' then redis.call('SADD', pool.available, pod) end
  return found
end

local function longest_free(pool)
  local later, chosen = {}, nil
  for _ = 1, LOOKS do
    local pod = redis.call('ZPOPMIN', pool.order)[1]
    if not pod then break end
    if redis.call('SREM', pool.available, pod) == 1 then
      local found = taken(pool, pod)
      if found == 'usable' then chosen = pod break end
      if found == 'later' then later[#later + 1] = pod end
    end
  end
  for _, pod in ipairs(later) do redis.call('ZADD', pool.order, whole(now_ms), pod) end
  if chosen then return chosen end
  -- Somebody put pods into the SET by hand, or the order was lost.
  for _, pod in ipairs(redis.call('SRANDMEMBER', pool.available, LOOKS)) do
    redis.call('SREM', pool.available, pod)
    if taken(pool, pod) == 'usable' then
      redis.call('ZREM', pool.order, pod)
      return pod
    end
  end
end

local function least_loaded(pool, max)
  local newest, first, first_load, first_url = redis.call('GET', base .. 'version'), nil, nil, ''
  for page = 0, 7 do
    local found = redis.call('ZRANGE', pool.available, '-inf', '(' .. max, 'BYSCORE', 'LIMIT', page * LOOKS, LOOKS, 'WITHSCORES')
    for i = 1, #found, 2 do
      if first and tonumber(found[i + 1]) > first_load then
        base_url = first_url
        return first
      end
      local state = look_at(found[i], true)
      if state == 'never' then redis.call('ZREM', pool.available, found[i]) end
      if state == 'usable' then
        if not newest or redis.call('HGET', pod_key(found[i]), 'version') == newest then return found[i] end
        if not first then first, first_load, first_url = found[i], tonumber(found[i + 1]), base_url end
      end
    end
    if first or #found < LOOKS * 2 then
      base_url = first_url
      return first
    end
  end
end

local function take(pool, pod, shared, is_queue)
  if shared then redis.call('ZINCRBY', pool.available, 1, pod) end
  redis.call('HSET', call, 'pod_name', pod, 'source_pool', pool.source, 'merchant_id', merchant,
    'allocated_at', now_s, 'allocation_id', allocation)
  redis.call('EXPIRE', call, lease_s)
  redis.call('HSET', pod_key(pod), 'status', 'allocated', 'allocated_call_sid', sid, 'allocated_at', now_s,
    'source_pool', pool.source)
  hold_call(pod, sid, lease_s)
  if is_queue then stop_waiting(sid) end
end

-- The tiers of this merchant that there are, in order and without repeats; 1 if its config names none there is.
local function chain()
  local wanted, odd = 'standard', 0
  local text = merchant ~= '' and redis.call('HGET', base .. 'merchant:config', merchant)
  if text then
    local is_json, config = pcall(cjson.decode, text)
    local tier = is_json and type(config) == 'table' and config.tier
    if tier == 'dedicated' then
      local own = type(config.pool) == 'string' and config.pool ~= '' and config.pool or merchant
      tier = 'merchant:' .. own
    end
    if type(tier) == 'string' then wanted = tier else odd = 1 end
  end
  local names, tiers, seen = {wanted, 'standard', 'overflow', 'basic'}, {}, {}
  local texts = redis.call('HMGET', base .. 'tiers', unpack(names))
  for i, tier in ipairs(names) do
    local kind, max = string.match(texts[i] or '', '^(%a)|%d+|(%d+)$')
    if kind and not seen[tier] then
      tiers[#tiers + 1] = {pool = pool_of(tier), shared = kind == 's', max = tonumber(max)}
    elseif not kind and i == 1 then
      odd = 1
    end
    seen[tier] = true
  end
  return tiers, odd
end

local function forget_silent_waiters()
  local silent = redis.call('ZRANGE', base .. 'waiting', '-inf', whole(now_ms - silence_ms), 'BYSCORE', 'LIMIT', 0, 100)
  for _, waiter in ipairs(silent) do stop_waiting(waiter) end
end

-- How many wait for this pool before this call.
local function waiting_before(pool)
  local mine = redis.call('ZRANK', pool.waiting, sid)
  return mine or redis.call('ZCARD', pool.waiting)
end

local function free_in(tier)
  if tier.shared then return redis.call('ZCOUNT', tier.pool.available, '-inf', '(' .. tier.max) end
  return redis.call('SCARD', tier.pool.available)
end

local function wait(tiers, odd)
  local since = tiers[1] and redis.call('ZSCORE', tiers[1].pool.waiting, sid)
  local waited_ms = since and now_ms - tonumber(since) or 0
  if not tiers[1] or waited_ms >= wait_max_ms or (not since and redis.call('ZCARD', base .. 'waiting') >= waiters_max) then
    stop_waiting(sid)
    return {'none', odd}
  end
  local names, before = {}, redis.call('ZCARD', base .. 'waiting')
  for i, tier in ipairs(tiers) do
    names[i] = tier.pool.tier
    redis.call('ZADD', tier.pool.waiting, 'NX', whole(now_ms), sid)
    before = math.min(before, redis.call('ZRANK', tier.pool.waiting, sid))
  end
  redis.call('HSET', base .. 'waiters', sid, table.concat(names, ' '))
  redis.call('ZADD', base .. 'waiting', whole(now_ms), sid)
  return {'hold', before, waited_ms}
end

-- Nearly always there is none of these: one question for all three.
local ended, waiting = base .. 'ended:' .. sid, base .. 'waiting'
local is_new = redis.call('EXISTS', ended, call, waiting) == 0
if not is_new and redis.call('EXISTS', ended) == 1 then return {'ended'} end

local holder = not is_new and redis.call('HGET', call, 'pod_name')
if holder then
  -- A record that was restored from a heartbeat has no allocation id yet.
  redis.call('HSETNX', call, 'allocation_id', allocation)
  local record = redis.call('HMGET', call, 'source_pool', 'allocated_at', 'allocation_id')
  local url = redis.call('HGET', pod_key(holder), 'base_url')
  return {'already', holder, record[1] or '', record[2] or '', record[3], url or '', 0}
end

local tiers, odd = chain()
local is_queue = not is_new and redis.call('EXISTS', waiting) == 1
if is_queue then forget_silent_waiters() end
for _, tier in ipairs(tiers) do
  -- While a tier changes its type its key has the old one: the leader is about to put it right.
  if fits(tier.pool, tier.shared) and (not is_queue or free_in(tier) > waiting_before(tier.pool)) then
    local pod = tier.shared and least_loaded(tier.pool, tier.max) or not tier.shared and longest_free(tier.pool)
    if pod then
      take(tier.pool, pod, tier.shared, is_queue)
      return {'allocated', pod, tier.pool.source, now_s, allocation, base_url, odd}
    end
  end
end
if wait_max_ms > 0 then return wait(tiers, odd) end
return {'none', odd}
