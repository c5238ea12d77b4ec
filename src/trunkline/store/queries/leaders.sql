-- name: acquire
-- Take or renew a lease, in one compare-and-set. The term grows whenever the lease changes hands or had expired, so that a
-- holder which slept through its lease comes back with a stale term.
INSERT INTO leaders AS l (name, holder, term, expires_at)
VALUES ($1, $2, 1, clock_timestamp() + make_interval(secs => $3))
ON CONFLICT (name) DO UPDATE
SET holder = excluded.holder,
    term = l.term + CASE WHEN l.holder = excluded.holder AND l.expires_at > clock_timestamp() THEN 0 ELSE 1 END,
    expires_at = excluded.expires_at
WHERE l.holder = excluded.holder OR l.holder IS NULL OR l.expires_at <= clock_timestamp()
RETURNING term

-- name: guard
-- Is this still the term? The row is locked until the commit, so no other leader can begin in between.
SELECT true FROM leaders WHERE name = $1 AND holder = $2 AND term = $3 FOR SHARE

-- name: resign
-- Release a lease at shutdown, so that the next leader need not wait for it to expire.
UPDATE leaders SET holder = NULL, expires_at = '-infinity' WHERE name = $1 AND holder = $2 AND term = $3
