#!lua flags=no-writes
-- Proves that this server runs our scripts, and returns its time.
-- Health checks call it: PING succeeds even while every script is refused.
--
-- KEYS[1] any key of the domain
-- -> {seconds, microseconds}
return redis.call('TIME')
