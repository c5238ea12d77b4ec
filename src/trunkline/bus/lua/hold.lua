#!lua
-- Writes the holders of channels as Postgres has them: after the projection was lost, and after Postgres refused a dial
-- because another attempt held its channel. A correct holder stays; a wrong one is removed, and its lead waits again: the
-- intent of its grant is refused, because the channel is not free. If only `holders` was lost, the channels keep their
-- attempts.
--
-- KEYS[1] epoch  KEYS[2] dialer_wakeups
-- @keys ARGV[4..] by 6: channels
-- ARGV[1] key prefix  ARGV[2] epoch (number@run id)
-- ARGV[3..] records of six: attempt, number, channel, lead ('' for an inbound call), flow (''), version
-- -> the number of holders that were written
-- @include keys
-- @include epoch
-- @include clock
-- @include leads
-- @include flows
-- @include channels
if not is_current(KEYS[1], ARGV[2]) then return LOST end
local now, written, is_uncounted = now_by(''), 0, false

local function remove_holder(attempt)
  local held = release(attempt)
  local lead = held and held.lead ~= '' and read_lead(held.lead)
  if lead and lead.place == 'g' and lead.version == tonumber(held.version) then
    place(lead, math.max(now, lead.due))
  end
end

for i = 3, #ARGV, 6 do
  local attempt, number, channel, lead_id, flow, version = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5]
  local before = redis.call('HGET', key('channels', number), channel)
  if before ~= attempt or redis.call('HEXISTS', key('holders'), attempt) == 0 then
    if before and before ~= attempt then remove_holder(before) end
    release(attempt)
    redis.call('HSET', key('channels', number), channel, attempt)
    redis.call('HSET', key('holders'), attempt, table.concat({number, channel, lead_id, flow, version, 0, 0, 0, 0}, '|'))
    note_free(number)
    if before == attempt then is_uncounted = true else count_live(flow, 1) end
    written = written + 1
  end
end
-- It is not known which of them are still counted.
if is_uncounted then recount_live() end
-- The lead of a removed holder may wait beside a free channel.
if written > 0 and redis.call('EXISTS', key('pools')) == 1 then wake_dialers(KEYS[2]) end
return written
