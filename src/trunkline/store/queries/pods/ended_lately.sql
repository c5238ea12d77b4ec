-- Calls that ended within the life of a tombstone, and how many seconds are left of it. Postgres knows them anyway: these
-- are for the time in which it is silent.
SELECT a.call, ceil($1 - extract(epoch FROM clock_timestamp() - a.ended_at))::int AS left_s
FROM allocations AS a
WHERE a.ended_at > clock_timestamp() - make_interval(secs => $1) AND a.call IS NOT NULL
ORDER BY a.ended_at DESC LIMIT 20000
