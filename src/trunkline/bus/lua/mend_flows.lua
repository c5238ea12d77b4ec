#!lua
-- Repairs the keys that follow from the queues of flows, where one was lost: that a flow has scheduled leads (`due`), that
-- it has waiting leads (`active`, or `parked` until a time), and that its pool has both these and free channels (`pools`).
-- Correct values stay.
--
-- KEYS[1] epoch  KEYS[2] dialer_wakeups
-- @keys ARGV[3..]: flow:<>:s flow:<>:w
-- ARGV[1] key prefix  ARGV[2] epoch (number@run id)  ARGV[3..] flows
-- -> the number of flows and pools that were repaired
-- @include keys
-- @include epoch
-- @include leads
-- @include flows
if not is_current(KEYS[1], ARGV[2]) then return LOST end
local mended = 0

for i = 3, #ARGV do
  local flow = ARGV[i]
  local pool = parts_of(flow).pool
  if not redis.call('ZSCORE', key('due'), flow) and redis.call('EXISTS', key_of(flow, 's')) == 1 then
    note_due(flow)
    mended = mended + 1
  end
  if not redis.call('ZSCORE', key('parked'), flow) and not redis.call('ZSCORE', key('active', pool), flow)
    and redis.call('EXISTS', key_of(flow, 'w')) == 1 then
    activate(flow)
    mended = mended + 1
  end
  if not redis.call('ZSCORE', key('pools'), pool)
    and redis.call('EXISTS', key('active', pool), key('free', pool)) == 2 then
    redis.call('ZADD', key('pools'), 0, pool)
    mended = mended + 1
  end
end
if mended > 0 then
  redis.call('LPUSH', KEYS[2], '1')
  redis.call('LTRIM', KEYS[2], 0, 15)
end
return mended
