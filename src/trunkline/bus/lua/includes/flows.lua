-- Flows: the leads of one merchant and campaign in a pool, the unit of fairness. Start-time fair queuing: a flow with
-- waiting leads is active with a start tag; the lowest is served, and each grant moves its tag on by what it costs.
--   active:<pool>   ZSET flow -> start tag        finish:<pool>  ZSET of idle flows -> their last finish
--   virtual         HASH pool -> virtual time     peers:<pool>   HASH merchant -> its active flows there
--   parked          ZSET flow -> wake time in ms  blocked:<what> SET of flows that wait for <what> to be released
local function key_of(flow, set) return key('flow', flow .. ':' .. set) end

local function cost_of(parts)
  local weight = tonumber(redis.call('HGET', key('weights'), parts.merchant) or '1')
  local peers = tonumber(redis.call('HGET', key('peers', parts.pool), parts.merchant) or '1')
  return math.max(peers, 1) / weight
end

local function activate(flow)
  local parts = parts_of(flow)
  if redis.call('ZSCORE', key('parked'), flow) then return end
  if redis.call('ZSCORE', key('active', parts.pool), flow) then return end
  if redis.call('ZCARD', key_of(flow, 'w')) == 0 then return end
  local virtual = tonumber(redis.call('HGET', key('virtual'), parts.pool)
    or redis.call('ZRANGE', key('active', parts.pool), 0, 0, 'WITHSCORES')[2] or '0')
  -- A flow's last finish is stored until virtual time has passed it. Deleted earlier, a flow that is refilled one lead at
  -- a time would begin anew each time and take every grant.
  local finish = tonumber(redis.call('ZSCORE', key('finish', parts.pool), flow) or '0')
  redis.call('ZREM', key('finish', parts.pool), flow)
  redis.call('ZADD', key('active', parts.pool), math.max(virtual, finish), flow)
  redis.call('HINCRBY', key('peers', parts.pool), parts.merchant, 1)
  redis.call('ZADD', key('pools'), 'NX', 0, parts.pool)
end

local function deactivate(flow)
  local parts = parts_of(flow)
  local start = redis.call('ZSCORE', key('active', parts.pool), flow)
  if not start then return end
  redis.call('ZREM', key('active', parts.pool), flow)
  redis.call('ZADD', key('finish', parts.pool), start, flow)
  if redis.call('HINCRBY', key('peers', parts.pool), parts.merchant, -1) <= 0 then
    redis.call('HDEL', key('peers', parts.pool), parts.merchant)
  end
end

-- A blocked flow leaves the scanned set, so that the work of a run stays bounded. It always has a wake time.
local function park(flow, wake, subject)
  deactivate(flow)
  redis.call('ZADD', key('parked'), wake, flow)
  if subject then redis.call('SADD', key('blocked', subject), flow) end
end

local function unpark(flow)
  if redis.call('ZREM', key('parked'), flow) == 1 then activate(flow) end
end

-- Bounded: the end of one call does not wake all flows.
local function unblock_some(subject, most)
  for _, flow in ipairs(redis.call('SPOP', key('blocked', subject), most)) do unpark(flow) end
end

local function unblock(subject)
  local flows = redis.call('SMEMBERS', key('blocked', subject))
  for _, flow in ipairs(flows) do unpark(flow) end
  if #flows > 0 then redis.call('DEL', key('blocked', subject)) end
end

local function size_of(flow) return redis.call('ZCARD', key_of(flow, 's')) + redis.call('ZCARD', key_of(flow, 'w')) end

-- `due` orders flows by their earliest scheduled lead, so 100,000 leads of one flow never come before another's one.
local function note_due(flow)
  local first = redis.call('ZRANGE', key_of(flow, 's'), 0, 0, 'WITHSCORES')
  if first[2] then redis.call('ZADD', key('due'), first[2], flow) else redis.call('ZREM', key('due'), flow) end
end

-- Sets when a waiting lead may go to its next pool. The wait counts from here, never from its due time: after an outage
-- all leads are long overdue, and would leave a pool that is idle.
local function wait_for_own_pool(lead, now, wait)
  lead.move_at = now + wait
  redis.call('ZADD', key('moves'), lead.move_at, lead.id)
end

local function line_up(lead, now)
  lead.place, lead.lined_up_at = 'w', now
  redis.call('ZADD', key_of(lead.flow, 'w'), rank(lead), lead.id)
  if lead.next_pool ~= '' then wait_for_own_pool(lead, now, lead.move_after) end
  write_lead(lead)
end

local function place(lead, now)
  if lead.due > now then
    lead.place = 's'
    redis.call('ZADD', key_of(lead.flow, 's'), lead.due, lead.id)
    note_due(lead.flow)
    write_lead(lead)
  else
    line_up(lead, now)
    activate(lead.flow)
  end
end

-- Takes a lead out of its set; its record stays, for the caller to rewrite or delete.
local function unplace(lead)
  if lead.place == 's' then
    redis.call('ZREM', key_of(lead.flow, 's'), lead.id)
    note_due(lead.flow)
  elseif lead.place == 'w' then
    redis.call('ZREM', key_of(lead.flow, 'w'), lead.id)
    if redis.call('ZCARD', key_of(lead.flow, 'w')) == 0 then deactivate(lead.flow) end
  end
  if lead.move_at > 0 then redis.call('ZREM', key('moves'), lead.id) end
  lead.move_at = 0
end

local function forget(lead)
  unplace(lead)
  redis.call('HDEL', key('leads'), lead.id)
end
