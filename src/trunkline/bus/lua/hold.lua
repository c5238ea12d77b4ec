#!lua
-- Writes down who holds a channel, as Postgres has it: after memory was lost, and after a dial was refused because
-- another attempt held its channel. A holder that is already right stays as it is; a wrong one is given up, and its
-- lead waits again: the intent of its grant is refused, because the channel is not free.
--
-- KEYS[1] epoch  KEYS[2] bell
-- ARGV[1] key prefix  ARGV[2] epoch (number@run id)
-- ARGV[3..] records of six: attempt, number, channel, lead ('' for an inbound call), flow (''), version
-- -> the number of holders that were written
local base = ARGV[1]
-- @include epoch
-- @include clock
-- @include leads
-- @include flows
-- @include channels
if not is_current(KEYS[1], ARGV[2]) then return LOST end
local now, written = now_by(''), 0

local function give_up(attempt)
  local held = release(attempt)
  local lead = held and held.lead ~= '' and read_lead(held.lead)
  if lead and lead.place == 'g' and lead.version == tonumber(held.version) then
    place(lead, math.max(now, lead.due))
  end
end

for i = 3, #ARGV, 6 do
  local attempt, number, channel, lead_id, flow, version = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5]
  local before = redis.call('HGET', base .. 'channels:' .. number, channel)
  if before ~= attempt then
    if before then give_up(before) end
    release(attempt)
    redis.call('HSET', base .. 'channels:' .. number, channel, attempt)
    redis.call('HSET', base .. 'holders', attempt, table.concat({number, channel, lead_id, flow, version, 0, 0, 0, 0}, '|'))
    note_free(number)
    count_live(flow, 1)
    written = written + 1
  end
end
-- A lead that was given up may wait beside a free channel.
if written > 0 and redis.call('EXISTS', base .. 'pools') == 1 then ring(KEYS[2]) end
return written
