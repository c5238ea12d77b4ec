#!lua
-- Wakes a dialer. A few wakeups are stored for dialers that do not wait yet.
--
-- KEYS[1] dialer_wakeups
-- -> 1
redis.call('LPUSH', KEYS[1], '1')
redis.call('LTRIM', KEYS[1], 0, 15)
return 1
