#!lua
-- Repairs the keys that follow from numbers and their holders, where one was lost: which channels are held, how many are
-- free, which numbers an account has, and the call counts of merchants and campaigns. Correct values stay.
--
-- KEYS[1] epoch  KEYS[2] dialer_wakeups
-- @keys ARGV[4..] by 2: channels
-- ARGV[1] key prefix  ARGV[2] epoch (number@run id)  ARGV[3] 1: count the calls of merchants and campaigns anew
-- ARGV[4..] records of two: number, its calls as Postgres has them: `channel=attempt,…`
-- -> the number of values that were repaired
-- @include keys
-- @include epoch
-- @include leads
-- @include flows
-- @include channels
if not is_current(KEYS[1], ARGV[2]) then return LOST end
local mended = 0

-- Only if the attempt still holds it here: a call that has ended since Postgres was read does not get its channel back.
local function hold_again(number, channel, attempt)
  local held = read_holder(attempt)
  if not held or held.number ~= number or held.channel ~= channel then return end
  mended = mended + redis.call('HSETNX', key('channels', number), channel, attempt)
end

for i = 4, #ARGV, 2 do
  local number = ARGV[i]
  for channel, attempt in string.gmatch(ARGV[i + 1], '(%d+)=([^,]+)') do hold_again(number, channel, attempt) end
  local pool, max, region, account = read_number(number)
  if pool then
    local free = max - redis.call('HLEN', key('channels', number))
    local rests = redis.call('ZSCORE', key('resting'), number)
    local wanted = (free > 0 and not rests) and tostring(free) or false
    local sets = {key('free', pool)}
    if region ~= '' then sets[2] = sets[1] .. '@' .. region end
    for _, set in ipairs(sets) do
      if redis.call('ZSCORE', set, number) ~= wanted then
        note_free(number)
        mended = mended + 1
      end
    end
    mended = mended + redis.call('SADD', key('account', account), number)
  end
end
if ARGV[3] == '1' and recount_live() then mended = mended + 1 end
if mended > 0 then wake_dialers(KEYS[2]) end
return mended
