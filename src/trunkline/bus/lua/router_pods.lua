#!lua
-- Makes pods what Postgres has: their tier, their slots, whether they are ready, leaving or about to change.
-- A pod's own report (its calls, its address) is newer here than there, so it is taken from Postgres only where the
-- projection has lost it, or has an earlier process. Slots without a live row are freed, missing rows are restored; an
-- unproven allocation is left to the proof. A lease and a call record that an operator deleted are not restored.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] run id of the server  ARGV[3] epoch id  ARGV[4] term  ARGV[5] lease in s
-- ARGV[6..] pods as JSON: name, incarnation, tier, fields {name: value}, ready, leaving, changing, reset_calls, drain_s,
--           unheard_ms (-1: no heartbeat ever), believed, rows {id, sid, slot, incarnation, merchant, source, turn, at_s}
-- -> {1 done, 0 refused; how many were wrong before; 1 if a slot came free while dials wait for agents;
--     pod, s that its drain lasts, … where Postgres does not have it}
-- @include router
-- @include router_term
-- @include router_rows
if not has_term(ARGV[3], ARGV[4]) then return {0} end
local lease_s, found = ARGV[5], {1, 0, 0}

local function place(pool, name)
  local kind = redis.call('TYPE', pool.available).ok
  if kind == 'zset' then return redis.call('ZSCORE', pool.available, name) or '' end
  return kind == 'set' and tostring(redis.call('SISMEMBER', pool.available, name)) or '0'
end

local function write_fields(pod, p, known_number)
  if not known_number or tonumber(known_number) < tonumber(p.incarnation) then
    local flat = {}
    for field, value in pairs(p.fields) do
      flat[#flat + 1] = field
      flat[#flat + 1] = value
    end
    redis.call('HSET', pod, 'incarnation', p.incarnation, 'leaving', p.leaving, unpack(flat))
  elseif redis.call('HEXISTS', pod, 'boot_id') == 0 or p.leaving == '1' then
    redis.call('HSET', pod, 'leaving', p.leaving)
  end
  redis.call('HSET', pod, 'ready', p.ready, 'changing', p.changing, 'uid', p.fields.uid or '')
  if p.reset_calls == '' then redis.call('HDEL', pod, 'reset_calls') else redis.call('HSET', pod, 'reset_calls', p.reset_calls) end
end

-- A drain in Valkey was set by an operator and counts; only a pod that the projection had lost gets Postgres's.
local function write_drain(p, was_lost)
  local left_s = redis.call('TTL', key('pod:draining', p.name))
  if was_lost and p.drain_s > 0 and left_s < 0 then
    redis.call('SET', key('pod:draining', p.name), 'true', 'EX', p.drain_s)
  elseif (left_s > 0) ~= (p.drain_s > 0) then
    found[#found + 1] = p.name
    found[#found + 1] = math.max(0, left_s)
  end
end

local function is_here(row)
  if redis.call('HGET', key('pod:slots', row.pod), row.slot) ~= row.id then return false end
  if row.sid == '' then return redis.call('EXISTS', key('kept', row.id)) == 1 end
  local holder, id, slot = unpack(redis.call('HMGET', key('call', row.sid), 'pod_name', 'allocation_id', 'slot'))
  return holder == row.pod and id == row.id and slot == row.slot and redis.call('GET', key('begun', row.id)) == row.sid
end

local function free_others(name, is_live)
  local slots = redis.call('HGETALL', key('pod:slots', name))
  for i = 1, #slots, 2 do
    local id = slots[i + 1]
    if not is_live[id] and not redis.call('ZSCORE', key('unproven'), id) then
      local sid = string.match(id, '^heard:(.+)$')
      if sid and holder_of(sid) == name then end_allocation(name, sid, name) else end_by_id(id, 0) end
      if redis.call('HGET', key('pod:slots', name), slots[i]) == id then redis.call('HDEL', key('pod:slots', name), slots[i]) end
    end
  end
end

local function put(p)
  local name, pod = p.name, key('pod', p.name)
  local known_number, status = unpack(redis.call('HMGET', pod, 'incarnation', 'status'))
  -- A newer process has registered since this was read.
  if known_number and tonumber(known_number) > tonumber(p.incarnation) then return end
  local own = redis.call('GET', key('pod:tier', name))
  local tier = redis.call('HEXISTS', key('tiers'), p.tier) == 1 and p.tier or 'standard'
  local before = place(pool_of(own or tier), name)
  if own and own ~= tier then leave_tier(name, own) end
  if own ~= tier then write_tier(name, tier) end
  redis.call('SADD', pool_of(tier).assigned, name)
  write_fields(pod, p, known_number)
  write_drain(p, not known_number)
  if p.unheard_ms >= 0 then redis.call('ZADD', key('heartbeats'), 'NX', whole(now_ms - p.unheard_ms), name) end
  if status == 'available' then adopt_reset(name, redis.call('HGETALL', key('pod:slots', name))) end
  local is_live = {}
  for _, row in ipairs(p.rows) do is_live[row.id] = true end
  free_others(name, is_live)
  for _, row in ipairs(p.rows) do
    row.pod = name
    local is_over = row.sid ~= '' and redis.call('EXISTS', key('ended', row.sid)) == 1
    if not is_over and redis.call('HEXISTS', key('resets'), row.id) == 0 and not is_here(row) then
      put_row(row, lease_s)
      redis.call('ZADD', key('unproven'), whole(now_ms), row.id)
    end
  end
  -- A pod that was deleted by hand counts as free as before.
  if p.believed == 1 or (is_rebuilt and not known_number) then redis.call('HSET', pod, 'epoch', (epoch())) end
  touched[name] = nil
  local leaving = redis.call('HGET', pod, 'leaving')
  redis.call(leaving == '1' and 'SADD' or 'SREM', pool_of(tier).leaving, name)
  local is_silent = redis.call('SISMEMBER', pool_of(tier).silent, name) == 1
  local _, _, _, wakes = settle(name, tier)
  if is_silent then
    -- It stays out of the free ones until its next heartbeat.
    take_out(pool_of(tier), name)
    redis.call('SADD', pool_of(tier).silent, name)
  end
  found[3] = math.max(found[3], wakes)
  if place(pool_of(tier), name) ~= before then found[2] = found[2] + 1 end
  -- The order has since when a pod is free, and puts older versions last.
  local since = not (tier_config(tier) or {}).shared and redis.call('ZSCORE', pool_of(tier).order, name)
  if since then
    local free_ms = tonumber(since) % 1e13
    local behind = tonumber(rank_of(redis.call('HGET', pod, 'version'))) >= 1e13
    redis.call('ZADD', pool_of(tier).order, whole(behind and free_ms + 1e13 or free_ms), name)
  end
end

for i = 6, #ARGV do put(cjson.decode(ARGV[i])) end
found[3] = math.max(found[3], settle_touched())
return found
