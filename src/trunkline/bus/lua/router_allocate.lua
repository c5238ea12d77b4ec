#!lua
-- Gives a call its pod, in one step: a taken pod is recorded at the same time, and however many requests for one call
-- arrive at once, all of them get the same pod.
-- The merchant's tier is tried first, then standard, overflow and basic. Of an exclusive tier the pod that has been free
-- longest is taken (the order is a hint: a pod counts as free only if the SET has it), of a shared one the least loaded.
-- A call that may wait keeps its position by repeating the request; free pods belong to those before it.
--
-- KEYS[1] epoch
-- @keys ARGV[3]: call ended
-- @keys ARGV[5]: begun
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] call sid  ARGV[4] merchant  ARGV[5] allocation id
-- ARGV[6] lease in s  ARGV[7] the longest wait in ms, 0: none  ARGV[8] ms without a request after which a waiter has left
-- ARGV[9] the most waiters  ARGV[10] 1 if Postgres is unavailable: then this projection decides, rebuilt or not
-- -> {'allocated' | 'already', pod, source pool, allocated at, allocation id, base URL of the pod, 1 if the merchant's
--     config names no tier there is, slot, incarnation of the pod}
--    {'none', 1 if …}  no pod is free
--    {'hold', how many wait before it, ms it has waited}
--    {'ended'}  the call has ended
--    {'stale'}  this projection was lost and is not rebuilt yet
-- @include router
-- @include router_choose
local sid, merchant, allocation, lease_s = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local wait_max_ms, silence_ms, waiters_max = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local is_alone = ARGV[10] == '1'
local call = key('call', sid)
local function take(pool, pod, slot, is_queue)
  local waited = is_queue and redis.call('HEXISTS', key('waiters'), sid) == 1
  redis.call('HSET', call, 'pod_name', pod, 'source_pool', pool.source, 'merchant_id', merchant,
    'allocated_at', now_s, 'allocation_id', allocation, 'slot', slot, 'incarnation', incarnation)
  redis.call('EXPIRE', call, lease_s)
  redis.call('HSET', key('pod:slots', pod), slot, allocation)
  redis.call('SET', key('begun', allocation), sid, 'EX', lease_s)
  redis.call('ZADD', key('unproven'), whole(now_ms), allocation)
  redis.call('HSET', key('pod', pod), 'status', 'allocated', 'allocated_call_sid', sid, 'allocated_at', now_s,
    'source_pool', pool.source)
  hold_call(pod, sid, lease_s)
  if waited then
    redis.call('HSET', call, 'waited', '1')
    redis.call('SADD', pool.yielded, sid)
    stop_waiting(sid)
  end
end

local function forget_silent_waiters()
  local silent = redis.call('ZRANGE', key('waiting'), '-inf', whole(now_ms - silence_ms), 'BYSCORE', 'LIMIT', 0, 100)
  for _, waiter in ipairs(silent) do stop_waiting(waiter) end
end

-- How many calls wait for this pool before this one.
local function waiting_before(pool)
  local mine = redis.call('ZRANK', pool.waiting, sid)
  return mine or redis.call('ZCARD', pool.waiting)
end

local function free_in(tier)
  if tier.shared then return redis.call('ZCOUNT', tier.pool.available, '-inf', '(' .. tier.max) end
  return redis.call('SCARD', tier.pool.available)
end

local function wait(tiers, is_misconfigured)
  local since = tiers[1] and redis.call('ZSCORE', tiers[1].pool.waiting, sid)
  local waited_ms = since and now_ms - tonumber(since) or 0
  if not tiers[1] or waited_ms >= wait_max_ms or (not since and redis.call('ZCARD', key('waiting')) >= waiters_max) then
    stop_waiting(sid)
    return {'none', is_misconfigured}
  end
  local names, before = {}, redis.call('ZCARD', key('waiting'))
  for i, tier in ipairs(tiers) do
    names[i] = tier.pool.tier
    if redis.call('ZADD', tier.pool.waiting, 'NX', whole(now_ms), sid) == 1 then
      redis.call('HINCRBY', tier.pool.waiting_merchants, merchant, 1)
    end
    before = math.min(before, redis.call('ZRANK', tier.pool.waiting, sid))
  end
  redis.call('HSET', key('waiters'), sid, table.concat(names, ' ') .. '\n' .. merchant)
  redis.call('ZADD', key('waiting'), whole(now_ms), sid)
  return {'hold', before, waited_ms}
end

epoch()
if not is_rebuilt and not is_alone then return {'stale'} end

-- Nearly always there is none of these: one command for all three.
local ended, waiting = key('ended', sid), key('waiting')
local is_new = redis.call('EXISTS', ended, call, waiting) == 0
if not is_new and redis.call('EXISTS', ended) == 1 then return {'ended'} end

local holder = not is_new and redis.call('HGET', call, 'pod_name')
if holder then
  -- A record that was restored from a heartbeat has no allocation id yet.
  local is_named = redis.call('HSETNX', call, 'allocation_id', allocation) == 1
  local record = redis.call('HMGET', call, 'source_pool', 'allocated_at', 'allocation_id', 'slot', 'incarnation')
  if is_named then
    redis.call('SET', key('begun', allocation), sid, 'EX', lease_s)
    if record[4] then redis.call('HSET', key('pod:slots', holder), record[4], allocation) end
  end
  local url = redis.call('HGET', key('pod', holder), 'base_url')
  return {'already', holder, record[1] or '', record[2] or '', record[3], url or '', 0, record[4] or '0', record[5] or '0'}
end

local tiers, is_misconfigured = chain(merchant)
local is_queue = not is_new and redis.call('EXISTS', waiting) == 1
if is_queue then forget_silent_waiters() end
local function answer(tier, pod, slot)
  take(tier.pool, pod, slot, is_queue)
  return {'allocated', pod, tier.pool.source, now_s, allocation, base_url, is_misconfigured, slot, incarnation}
end
for _, tier in ipairs(tiers) do
  if not is_queue or (fits(tier.pool, tier.shared) and free_in(tier) > waiting_before(tier.pool)) then
    local pod, slot = choose(tier, false)
    if pod then return answer(tier, pod, slot) end
  end
end
for _, tier in ipairs(tiers) do
  local pod, slot = choose_silent(tier)
  if pod then return answer(tier, pod, slot) end
end
if wait_max_ms > 0 then return wait(tiers, is_misconfigured) end
return {'none', is_misconfigured}
