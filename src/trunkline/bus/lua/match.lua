#!lua
-- Pairs due leads with free channels, in one step: a lead is not touched until a channel is free for it, so a backlog of a
-- million costs nothing. Fair between flows; every part of the work is bounded.
-- It finds the flows, pools and numbers while it runs: their keys have the hash tag of the declared ones.
--
-- KEYS[1] epoch
-- ARGV[1] key prefix  ARGV[2] epoch (number@run id)  ARGV[3] offset of Postgres's clock in ms: Postgres decides what is due
-- ARGV[4] the most leads that become due in this run
-- ARGV[5] ms before its due time at which a lead is granted: its call is prepared meanwhile, and leaves on time
-- ARGV[6] ms after this run at which the next lead is worth a run of its own: leads that fall due meanwhile share it
-- ARGV[7] agents that are free for dials: `*=n,tier=n,…`, where * is the fallback of every merchant; '': no bound
-- ARGV[8] carriers whose calls need no agent of ours, separated by spaces
-- ARGV[9] accounts that the calling dialer leaves out, separated by spaces
-- ARGV[10..] attempt ids; their count is the most that is granted
-- -> {ms until the next event without a wakeup (-1: none; 0: run again at once),
--     grants: attempt, lead, version, number, channel, due, granted at, merchant, campaign, ready at, …;
--     leads whose window closed: lead, version, …}
--
-- `ready at`: when all that the lead needs was available. A run that ends with channels left and no lead for them shows that
-- each lead which still waits lacked something: a channel, an agent, leave to start. `idle` is the time of the last such run.
-- A lead that waited then was not ready before it; one that had not lined up yet is late since it was due.
-- @include keys
-- @include epoch
-- @include clock
-- @include leads
-- @include flows
-- @include channels
if not is_current(KEYS[1], ARGV[2]) then return LOST end

local now = now_by(ARGV[3])
local ready = now + tonumber(ARGV[5])
local text_now, text_ready = string.format('%.0f', now), string.format('%.0f', ready)
local moves_left, next_id = tonumber(ARGV[4]), 10
local grants, closed = {}, {}

local function due_before_now(set, limit)
  return redis.call('ZRANGE', set, '-inf', text_now, 'BYSCORE', 'LIMIT', 0, limit)
end

local function due_soon(set, limit) return redis.call('ZRANGE', set, '-inf', text_ready, 'BYSCORE', 'LIMIT', 0, limit) end

-- Brings back parked flows and resting numbers whose time has come.
local function wake()
  for _, flow in ipairs(due_before_now(key('parked'), 16)) do unpark(flow) end
  for _, number in ipairs(due_before_now(key('resting'), 16)) do
    redis.call('ZREM', key('resting'), number)
    note_free(number)
  end
end

-- Leads whose time has come wait in their flow. Flows take turns by their earliest due time; one with more due leads goes
-- behind all others that are due, or at nine o'clock the thousand of one would come before another's one.
local function become_due()
  while moves_left > 0 do
    local flow = due_soon(key('due'), 1)[1]
    if not flow then return end
    local ids = due_soon(key_of(flow, 's'), math.min(moves_left, 16))
    for _, id in ipairs(ids) do
      local lead = read_lead(id)
      redis.call('ZREM', key_of(flow, 's'), id)
      if lead then line_up(lead, now) end
    end
    moves_left = moves_left - math.max(#ids, 1)
    note_due(flow)
    local due = redis.call('ZSCORE', key('due'), flow)
    if due and tonumber(due) <= ready then redis.call('ZADD', key('due'), text_ready, flow) end
    activate(flow)
  end
end

local function stopped(parts)
  local found = redis.call('HMGET', key('stops'), 'r/' .. parts.reseller, 'm/' .. parts.merchant, campaign_of(parts))
  return found[1] or found[2] or found[3]
end

-- The hard limit that a flow has reached, or nil.
local function reached(parts)
  for _, subject in ipairs({'m/' .. parts.merchant, campaign_of(parts)}) do
    local cap = redis.call('HGET', key('caps'), subject)
    if cap and tonumber(redis.call('HGET', key('live'), subject) or '0') >= tonumber(cap) then return subject end
  end
end

-- Agents are a hint like channels: the intent reserves them. Without a free agent nothing is granted, or every run would
-- grant the same leads in vain. `ungated` flows need none: `all` of their leads where their agents are external; where they
-- are overdialled, a `few` in each run. Only the intent knows how many more may ring, and it parks the flow when it refuses
-- one: so few are granted in vain.
local OVERDIALLED_MAX = 4
local agents_free, is_short_of_agents, overdialled, has_more = {}, false, 0, false
for tier, free in string.gmatch(ARGV[7], '([^=,]+)=(%d+)') do agents_free[tier] = tonumber(free) end

-- How many leads may go without a free agent: 'all', 'few' or 'none'.
local function ungated(parts, account)
  if ARGV[7] == '' then return 'all' end
  local carrier = string.match(account, '^[^/]*')
  if string.find(' ' .. ARGV[8] .. ' ', ' ' .. carrier .. ' ', 1, true) then return 'all' end
  local found = redis.call('HMGET', key('ungated'), 'm/' .. parts.merchant, 'p/' .. parts.pool, campaign_of(parts))
  for i = 1, 3 do
    if found[i] and found[i] ~= 'few' then return 'all' end
  end
  return (found[1] or found[2] or found[3]) and 'few' or 'none'
end

local function take_agent(parts)
  local own = redis.call('HGET', key('tiers'), parts.merchant)
  for _, tier in ipairs({own or '*', '*'}) do
    if (agents_free[tier] or 0) > 0 then
      agents_free[tier] = agents_free[tier] - 1
      return true
    end
  end
  is_short_of_agents = true
  return false
end

local idle
local function ready_at(lead)
  idle = idle or tonumber(redis.call('GET', key('idle')) or '0')
  local at = lead.counts_from
  if lead.lined_up_at < idle and idle > at then at = idle end
  return math.min(at, math.max(now, lead.due))
end

local function grant(flow, start, lead, number, channel)
  local parts, attempt = parts_of(flow), ARGV[next_id]
  local cost = cost_of(parts)
  unplace(lead)
  lead.place = 'g'
  write_lead(lead)
  redis.call('HSET', key('channels', number), channel, attempt)
  redis.call('HSET', key('holders'), attempt,
    table.concat({number, channel, lead.id, flow, lead.version, string.format('%.0f', lead.due), text_now, start, cost}, '|'))
  note_free(number)
  count_live(flow, 1)
  redis.call('HSET', key('virtual'), parts.pool, start)
  local finish = start + cost
  if redis.call('ZADD', key('active', parts.pool), 'XX', 'CH', finish, flow) == 0 then
    redis.call('ZADD', key('finish', parts.pool), finish, flow)
  end
  redis.call('ZREMRANGEBYSCORE', key('finish', parts.pool), '-inf', start)
  for _, value in ipairs({attempt, lead.id, lead.version, number, channel, string.format('%.0f', lead.due), text_now, parts.merchant, parts.campaign,
      string.format('%.0f', ready_at(lead))}) do
    grants[#grants + 1] = tostring(value)
  end
  next_id = next_id + 1
end

-- The least loaded number of a pool, or of a region of it, that the calling dialer may use. It leaves out accounts for a
-- while: it cannot reach them, or has used its share of calls with them. Other dialers may use them meanwhile.
local was_left_out = false
local left_out, is_left_out = ' ' .. ARGV[9] .. ' ', false
local function least_loaded(set)
  if ARGV[9] == '' then return redis.call('ZRANGE', set, 0, 0, 'REV')[1] end
  for _, number in ipairs(redis.call('ZRANGE', set, 0, 63, 'REV')) do
    local _, _, _, account = read_number(number)
    if not string.find(left_out, ' ' .. account .. ' ', 1, true) then return number end
    is_left_out = true
  end
end

-- One step in one pool. True while there may be more to do there.
local function serve(pool)
  local head = redis.call('ZRANGE', key('active', pool), 0, 0, 'WITHSCORES')
  local flow, start = head[1], tonumber(head[2])
  if not flow then
    redis.call('ZREM', key('pools'), pool)
    return false
  end
  is_left_out = false
  local number = least_loaded(key('free', pool))
  if not number then
    -- A pool that only other dialers may use goes behind those that this one may use too.
    if is_left_out then
      was_left_out = true
      redis.call('ZADD', key('pools'), 'XX', now, pool)
    else
      redis.call('ZREM', key('pools'), pool)
    end
    return false
  end
  local parts = parts_of(flow)
  if stopped(parts) then park(flow, now + 1000) return true end
  local limit = reached(parts)
  if limit then park(flow, now + 1000, limit) return true end
  local first = redis.call('ZRANGE', key_of(flow, 'w'), 0, 0)[1]
  local lead = first and read_lead(first)
  if not lead then
    -- Part of the projection is gone: the records of leads, or the queue of this flow. The loader repairs both.
    if first then redis.call('ZREM', key_of(flow, 'w'), first) else deactivate(flow) end
    return true
  end
  if lead.closes > 0 and lead.closes <= now then
    forget(lead)
    closed[#closed + 1] = lead.id
    closed[#closed + 1] = tostring(lead.version)
    return true
  end
  -- The least loaded of the callee's region, if the pool prefers that and there is one; else of all.
  if lead.region ~= '' then
    number = least_loaded(key('free', pool .. '@' .. lead.region)) or number
  end
  local _, max, _, account = read_number(number)
  local channel = lowest_free(number, max)
  if not channel then
    note_free(number)
    return true
  end
  local without = ungated(parts, account)
  if without == 'few' then
    if overdialled == OVERDIALLED_MAX then
      has_more = true
      return false
    end
    overdialled = overdialled + 1
  elseif without == 'none' and not take_agent(parts) then
    park(flow, now + 1000, 'any')
    return true
  end
  grant(flow, start, lead, number, channel)
  return true
end

-- Pools take turns too: the one that was served longest ago comes first. `pools` has those with waiting leads and free
-- channels; one that turns out to have neither is removed, so it costs a step once.
local function serve_all()
  local steps = 64
  local pools = redis.call('ZRANGE', key('pools'), 0, 63)
  for _, pool in ipairs(pools) do
    while next_id <= #ARGV and steps > 0 and serve(pool) do steps = steps - 1 end
    if next_id > #ARGV or steps == 0 then
      redis.call('ZADD', key('pools'), 'XX', now, pool)
      return true
    end
  end
  return #pools == 64
end

-- Leads that have waited long enough for their own pool may use the next one, after the free channels were granted. If
-- their own pool has a channel after all they wait again, and also while many stand there: Postgres still has those that
-- moved as the next of their own flow, and the loader reads only so far.
local MOVED_MAX = 100
local function move_on()
  local moved = false
  for _, id in ipairs(due_before_now(key('moves'), 16)) do
    local lead = read_lead(id)
    local parts = lead and parts_of(lead.flow)
    local target = lead and table.concat({lead.next_pool, parts.reseller, parts.merchant, parts.campaign}, '/')
    if not lead then
      redis.call('ZREM', key('moves'), id)
    elseif redis.call('EXISTS', key('free', parts.pool)) == 1 or size_of(target) >= MOVED_MAX then
      wait_for_own_pool(lead, now, math.max(lead.move_after, 1000))
      write_lead(lead)
    else
      unplace(lead)
      lead.flow, lead.next_pool, lead.move_after, lead.counts_from = target, '', 0, now
      place(lead, now)
      moved = true
    end
  end
  return moved
end

local function next_moment()
  local soonest = -1
  for _, set in ipairs({key('due'), key('parked'), key('resting'), key('moves')}) do
    local first = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')
    if first[2] then
      local wait = math.max(0, tonumber(first[2]) - (set == key('due') and ready or now))
      if set == key('due') and wait > 0 then wait = math.max(wait, tonumber(ARGV[6])) end
      if soonest < 0 or wait < soonest then soonest = wait end
    end
  end
  return soonest
end

local function note_idle() redis.call('SET', key('idle'), text_now) end

if redis.call('HEXISTS', key('stops'), 'all') == 1 then
  note_idle()
  return {1000, grants, closed}
end
if redis.call('GET', key('offset')) ~= ARGV[3] then redis.call('SET', key('offset'), ARGV[3]) end
wake()
become_due()
local full = serve_all()
local moved = move_on()
if not full and not moved and not has_more and not was_left_out then note_idle() end
-- While agents are missing, or accounts are left out, running again at once gains nothing: there may be thousands of flows
-- and pools.
local pause = ((is_short_of_agents or was_left_out) and #grants == 0) and 50 or 0
-- After some overdialled grants the dialer runs the match again when their batch is done.
if has_more and not full and not moved then return {1, grants, closed} end
return {(full or moved) and pause or next_moment(), grants, closed}
