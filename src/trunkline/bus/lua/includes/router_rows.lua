-- Writes a live row of Postgres into the projection: the slot is this allocation's, reserved or begun. Anything else under
-- the same id, for the same call or on the same slot is removed.
local touched = {}

local function put_row(row, lease_s)
  local kept_at, kept_slot = unpack(redis.call('HMGET', key('kept', row.id), 'pod', 'slot'))
  if kept_at and (row.sid ~= '' or kept_at ~= row.pod or kept_slot ~= row.slot) then touched[unkeep(row.id)] = true end
  local before = redis.call('GET', key('begun', row.id))
  if before and (before ~= row.sid or holder_of(before) ~= row.pod) then
    touched[end_by_id(row.id, 0) or row.pod] = true
  end
  if row.sid ~= '' then
    local holder, id, slot = unpack(redis.call('HMGET', key('call', row.sid), 'pod_name', 'allocation_id', 'slot'))
    if holder and (holder ~= row.pod or id ~= row.id or slot ~= row.slot) then
      end_allocation(holder, row.sid, holder)
      touched[holder] = true
    end
  end
  local other = redis.call('HGET', key('pod:slots', row.pod), row.slot)
  if other and other ~= row.id then
    touched[end_by_id(other, 0) or row.pod] = true
    redis.call('HDEL', key('pod:slots', row.pod), row.slot)
  end
  redis.call('HSET', key('pod:slots', row.pod), row.slot, row.id)
  if row.sid == '' then
    redis.call('HSET', key('kept', row.id), 'pod', row.pod, 'slot', row.slot, 'incarnation', row.incarnation, 'source_pool',
      row.source, 'merchant_id', row.merchant)
    redis.call('ZADD', key('kept'), 'NX', whole(now_ms), row.id)
    redis.call('ZADD', pool_of(tier_of_source(row.source)).kept, 'NX', whole(now_ms), row.id)
  else
    redis.call('HSET', key('call', row.sid), 'pod_name', row.pod, 'source_pool', row.source, 'merchant_id', row.merchant,
      'allocated_at', row.at_s, 'allocation_id', row.id, 'slot', row.slot, 'incarnation', row.incarnation, 'turn', row.turn)
    redis.call('EXPIRE', key('call', row.sid), lease_s)
    redis.call('SET', key('begun', row.id), row.sid, 'EX', lease_s)
    hold_call(row.pod, row.sid, lease_s)
    redis.call('HSET', key('pod', row.pod), 'status', 'allocated', 'allocated_call_sid', row.sid, 'allocated_at', row.at_s,
      'source_pool', row.source)
  end
  touched[row.pod] = true
end

-- 1 if a slot came free while dials wait for agents.
local function settle_touched()
  local wakes = 0
  for name in pairs(touched) do
    local tier = redis.call('GET', key('pod:tier', name))
    if tier then wakes = math.max(wakes, (select(4, settle(name, tier)))) end
  end
  return wakes
end
