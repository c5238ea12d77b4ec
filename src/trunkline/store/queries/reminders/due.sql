-- Series whose next occurrence is due within the horizon, oldest first: a look without a lock, so that several processes
-- may look at once. Whoever comes first claims.
SELECT id FROM reminders
WHERE status = 'ACTIVE' AND next_at <= clock_timestamp() + make_interval(secs => $1)
ORDER BY next_at, id
LIMIT $2
