#!lua
-- Frees channels by attempt id: twice frees once, and never another attempt's channel. Records of the leads are deleted, so
-- that their next version can be scheduled; leads that waited behind this call are due now, and flows that waited for the
-- end of any call are unparked.
-- Wakes a dialer only if a lead waits for a freed channel: most calls end when none does, and every wakeup costs a match.
--
-- KEYS[1] epoch  KEYS[2] dialer_wakeups
-- @keys ARGV[3..]: behind
-- ARGV[1] key prefix  ARGV[2] epoch (number@run id)  ARGV[3..] attempt ids
-- -> the number of channels that were freed
-- @include keys
-- @include epoch
-- @include leads
-- @include flows
-- @include channels
if not is_current(KEYS[1], ARGV[2]) then return LOST end
local freed, has_unblocked = 0, false

local function unblock_behind(attempt)
  for _, id in ipairs(redis.call('SMEMBERS', key('behind', attempt))) do
    local lead = read_lead(id)
    if lead and lead.place == 's' then
      redis.call('ZADD', key_of(lead.flow, 's'), 'XX', 'LT', 0, id)
      note_due(lead.flow)
      has_unblocked = true
    end
  end
  redis.call('DEL', key('behind', attempt))
end

for i = 3, #ARGV do
  local held = release(ARGV[i])
  if held then
    freed = freed + 1
    local lead = held.lead ~= '' and read_lead(held.lead)
    if lead and lead.place == 'g' and lead.version == tonumber(held.version) then forget(lead) end
  end
  unblock_behind(ARGV[i])
end
if freed > 0 then unblock_some('any', 16) end
-- Pools that have both waiting leads and free channels.
if has_unblocked or (freed > 0 and redis.call('EXISTS', key('pools')) == 1) then wake_dialers(KEYS[2]) end
return freed
