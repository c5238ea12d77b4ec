#!lua
-- Finds pods that have been silent for too long, while heartbeats were received: after a gap in these runs (no router, no
-- Valkey) every pod gets a full time-to-live again, or one outage would empty the pools. The leader decides about them.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] time-to-live of a heartbeat in ms
-- ARGV[4] the longest gap between runs in ms  ARGV[5] the most pods  ARGV[6] ms without a request after which a waiter left
-- -> {pods that send heartbeats, silent pod, its last heartbeat, 1 if it was leaving, …}
-- @include router
-- @include router_choose
-- @include router_receiving
local ttl_ms, gap_ms = tonumber(ARGV[3]), tonumber(ARGV[4])
-- Records expire with their lease, or are deleted by hand; the oldest of the list are checked.
for _, sid in ipairs(redis.call('ZRANGE', key('calls'), 0, 99)) do
  if redis.call('EXISTS', key('call', sid)) == 0 then redis.call('ZREM', key('calls'), sid) end
end
-- Calls that hung up while no other requested a pod: an autoscaler would go on making pods for them.
for _, sid in ipairs(redis.call('ZRANGE', key('waiting'), '-inf', whole(now_ms - ARGV[6]), 'BYSCORE', 'LIMIT', 0, 100)) do
  stop_waiting(sid)
end
local found = {redis.call('ZCARD', key('heartbeats'))}
local heard_for_ms = mark_receiving(gap_ms)
-- Silent for dials long before they are removed: taken out of the free ones.
if heard_for_ms >= SILENT_MIN_MS then
  local quiet = redis.call('ZRANGE', key('heartbeats'), '-inf', '(' .. whole(now_ms - SILENT_MIN_MS), 'BYSCORE', 'LIMIT', 0, ARGV[5])
  for _, name in ipairs(quiet) do
    local tier = redis.call('GET', key('pod:tier', name))
    local pool = tier and pool_of(tier)
    if pool and is_silent(name, redis.call('HGET', key('pod', name), 'interval_s')) then
      local kind = redis.call('TYPE', pool.available).ok
      if (kind == 'set' and redis.call('SISMEMBER', pool.available, name) == 1)
        or (kind == 'zset' and redis.call('ZSCORE', pool.available, name)) then mark_silent(pool, name) end
    end
  end
end
if heard_for_ms < ttl_ms then return found end
local silent = redis.call('ZRANGE', key('heartbeats'), '-inf', '(' .. whole(now_ms - ttl_ms), 'BYSCORE', 'LIMIT', 0, ARGV[5],
  'WITHSCORES')
for i = 1, #silent, 2 do
  found[#found + 1] = silent[i]
  found[#found + 1] = silent[i + 1]
  found[#found + 1] = redis.call('HGET', key('pod', silent[i]), 'leaving') == '1' and 1 or 0
end
return found
