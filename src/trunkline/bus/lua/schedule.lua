#!lua
-- Puts leads into the schedule. Adding is idempotent: a lead that is known at this version or a newer one stays where
-- it is, also while it is granted; a newer version moves it. A flow has at most `cap` leads here: an arrival that
-- sorts before the last one takes its place, any other stays in Postgres, and the flow is marked for a refill. What is
-- due beyond the horizon stays in Postgres too: here it would only take the room of what is due. The loader brings it.
--
-- KEYS[1] epoch  KEYS[2] bell
-- ARGV[1] key prefix  ARGV[2] epoch (number@run id)  ARGV[3] offset of Postgres' clock in ms ('': as known here)  ARGV[4] cap
-- ARGV[5] horizon in ms
-- ARGV[6..] records of nine: lead, version, flow, priority, due, closes (0: never), next pool (''), move after in ms,
-- region ('')
-- -> the number of leads that were added or moved
local base = ARGV[1]
-- @include epoch
-- @include clock
-- @include leads
-- @include flows
-- @include channels
if not is_current(KEYS[1], ARGV[2]) then return LOST end

local now = now_by(ARGV[3])
local cap, horizon, added = tonumber(ARGV[4]), now + tonumber(ARGV[5]), 0

-- Makes room for a lead in a full flow; false if it sorts last itself.
local function make_room(lead)
  redis.call('SADD', base .. 'partial', lead.flow)
  local last = redis.call('ZRANGE', key_of(lead.flow, 's'), -1, -1)[1]
  if last then
    local worst = read_lead(last)
    if lead.due > now and lead.due >= worst.due then return false end
    forget(worst)
    return true
  end
  local worst = read_lead(redis.call('ZRANGE', key_of(lead.flow, 'w'), -1, -1)[1])
  if lead.due > now or rank(lead) >= rank(worst) then return false end
  forget(worst)
  return true
end

for i = 6, #ARGV, 9 do
  local lead = {id = ARGV[i], version = tonumber(ARGV[i + 1]), flow = ARGV[i + 2], priority = tonumber(ARGV[i + 3]),
    due = tonumber(ARGV[i + 4]), closes = tonumber(ARGV[i + 5]), next_pool = ARGV[i + 6], move_at = 0,
    move_after = tonumber(ARGV[i + 7]), region = ARGV[i + 8]}
  local known = read_lead(lead.id)
  if not known or known.version < lead.version then
    if known then forget(known) end
    if lead.due <= horizon and (size_of(lead.flow) < cap or make_room(lead)) then
      place(lead, now)
      added = added + 1
    end
  end
end
if added > 0 then ring(KEYS[2]) end
return added
