-- Channels are held by name. `numbers` HASH number -> pool|max|region|account; `account:<account>` SET of its numbers;
-- `channels:<number>` HASH channel -> attempt;
-- `free:<pool>` ZSET number -> how many channels are free, without numbers that rest until a time (`resting`), and
-- `free:<pool>@<region>` the same for one region, where the pool prefers numbers of the callee's.
-- A holder: number|channel|lead|flow|version|due|granted at|start tag|cost. Lead and flow are '' for a call that was
-- not granted here: an inbound one, or one that was restored from Postgres.
local function read_number(number)
  local text = redis.call('HGET', key('numbers'), number)
  if not text then return nil, 0, '', '' end
  local pool, max, region, account = string.match(text, '^([^|]*)|(%d+)|([^|]*)|(.*)$')
  return pool, tonumber(max), region, account
end

local function note_free(number)
  local pool, max, region = read_number(number)
  if not pool then return end
  local free = max - redis.call('HLEN', key('channels', number))
  local sets = {key('free', pool)}
  if region ~= '' then sets[2] = key('free', pool .. '@' .. region) end
  if free > 0 and not redis.call('ZSCORE', key('resting'), number) then
    for _, set in ipairs(sets) do redis.call('ZADD', set, free, number) end
    -- The match skips a pool without a free channel; now this one has one.
    if redis.call('EXISTS', key('active', pool)) == 1 then redis.call('ZADD', key('pools'), 'NX', 0, pool) end
  else
    for _, set in ipairs(sets) do redis.call('ZREM', set, number) end
  end
end

local function lowest_free(number, max)
  local held = {}
  for _, channel in ipairs(redis.call('HKEYS', key('channels', number))) do held[channel] = true end
  for channel = 1, max do
    if not held[tostring(channel)] then return channel end
  end
end

local function read_holder(attempt)
  local text = redis.call('HGET', key('holders'), attempt)
  if not text then return nil end
  local held = {attempt = attempt}
  held.number, held.channel, held.lead, held.flow, held.version, held.due, held.at, held.start, held.cost = string.match(
    text, '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)$')
  return held
end

-- The call counts of a merchant and a campaign, for their hard limits.
local function count_live(flow, by)
  if flow == '' then return end
  local parts = parts_of(flow)
  for _, subject in ipairs({'m/' .. parts.merchant, campaign_of(parts)}) do
    if redis.call('HINCRBY', key('live'), subject, by) <= 0 then redis.call('HDEL', key('live'), subject) end
    if by < 0 then unblock(subject) end
  end
end

-- Counts them again from the holders, after a key was lost. Returns whether they were wrong.
local function recount_live()
  local live, is_wrong = {}, false
  for _, held in ipairs(redis.call('HVALS', key('holders'))) do
    local flow = string.match(held, '^[^|]*|[^|]*|[^|]*|([^|]*)|')
    if flow ~= '' then
      local parts = parts_of(flow)
      for _, subject in ipairs({'m/' .. parts.merchant, campaign_of(parts)}) do live[subject] = (live[subject] or 0) + 1 end
    end
  end
  for _, subject in ipairs(redis.call('HKEYS', key('live'))) do
    if not live[subject] then
      redis.call('HDEL', key('live'), subject)
      is_wrong = true
    end
  end
  for subject, count in pairs(live) do
    if redis.call('HGET', key('live'), subject) ~= tostring(count) then
      redis.call('HSET', key('live'), subject, count)
      is_wrong = true
    end
  end
  return is_wrong
end

-- Frees the channel of an attempt. Twice frees once, and never another attempt's channel.
local function release(attempt)
  local held = read_holder(attempt)
  if not held then return nil end
  local channels = key('channels', held.number)
  if redis.call('HGET', channels, held.channel) == attempt then redis.call('HDEL', channels, held.channel) end
  redis.call('HDEL', key('holders'), attempt)
  note_free(held.number)
  count_live(held.flow, -1)
  return held
end

local function wake_dialers(wakeups)
  redis.call('LPUSH', wakeups, '1')
  redis.call('LTRIM', wakeups, 0, 15)
end
