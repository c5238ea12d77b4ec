#!lua
-- Puts leads into the schedule. Adding is idempotent: a lead with this version or a newer one stays where it is, also while
-- it is granted; a newer version moves it. One that is not where its record says (a key was lost) is put there again. A flow
-- has at most `cap` leads here: a new lead that sorts before the last one replaces it, any other stays in Postgres, and the
-- flow is marked for a refill. Leads that are due beyond the horizon stay in Postgres too: here they would only displace
-- those that are due. The loader adds them later.
--
-- KEYS[1] epoch  KEYS[2] dialer_wakeups
-- @keys ARGV[8..] by 9: flow:<>:s flow:<>:w
-- ARGV[1] key prefix  ARGV[2] epoch (number@run id)  ARGV[3] offset of Postgres's clock in ms ('': the stored one)  ARGV[4] cap
-- ARGV[5] horizon in ms
-- ARGV[6..] records of nine: lead, version, flow, priority, due, closes (0: never), next pool (''), move after in ms,
-- region ('')
-- -> the number of leads that were added or moved
-- @include keys
-- @include epoch
-- @include clock
-- @include leads
-- @include flows
-- @include channels
if not is_current(KEYS[1], ARGV[2]) then return LOST end

local now = now_by(ARGV[3])
local cap, horizon, added = tonumber(ARGV[4]), now + tonumber(ARGV[5]), 0

-- Whether a lead is missing where its record says. Checked only when it is added again at the same version.
local function is_astray(lead)
  if lead.place == 'g' then
    for _, held in ipairs(redis.call('HVALS', key('holders'))) do
      if string.find(held, '|' .. lead.id .. '|', 1, true) then return false end
    end
    return true
  end
  if lead.move_at > 0 and not redis.call('ZSCORE', key('moves'), lead.id) then return true end
  return not redis.call('ZSCORE', key_of(lead.flow, lead.place), lead.id)
end

-- Makes room for a lead in a full flow; false if it sorts last itself.
local function make_room(lead)
  redis.call('SADD', key('partial'), lead.flow)
  local last = redis.call('ZRANGE', key_of(lead.flow, 's'), -1, -1)[1]
  if last then
    local worst = read_lead(last)
    if not worst then return redis.call('ZREM', key_of(lead.flow, 's'), last) == 1 end
    if lead.due > now and lead.due >= worst.due then return false end
    forget(worst)
    return true
  end
  last = redis.call('ZRANGE', key_of(lead.flow, 'w'), -1, -1)[1]
  local worst = read_lead(last)
  if not worst then return redis.call('ZREM', key_of(lead.flow, 'w'), last) == 1 end
  if lead.due > now or rank(lead) >= rank(worst) then return false end
  forget(worst)
  return true
end

for i = 6, #ARGV, 9 do
  local lead = {id = ARGV[i], version = tonumber(ARGV[i + 1]), flow = ARGV[i + 2], priority = tonumber(ARGV[i + 3]),
    due = tonumber(ARGV[i + 4]), closes = tonumber(ARGV[i + 5]), next_pool = ARGV[i + 6], move_at = 0,
    move_after = tonumber(ARGV[i + 7]), region = ARGV[i + 8], counts_from = tonumber(ARGV[i + 4]), lined_up_at = 0}
  local known = read_lead(lead.id)
  if not known or known.version < lead.version or (known.version == lead.version and is_astray(known)) then
    if known then forget(known) end
    if lead.due <= horizon and (size_of(lead.flow) < cap or make_room(lead)) then
      place(lead, now)
      added = added + 1
    end
  end
end
if added > 0 then wake_dialers(KEYS[2]) end
return added
