#!lua flags=no-writes
-- Proves that this server runs our scripts, and says what time it has.
-- Health checks call it: PING stays green while every script is refused.
--
-- KEYS[1] any key of the domain
-- -> {seconds, microseconds}
return redis.call('TIME')
