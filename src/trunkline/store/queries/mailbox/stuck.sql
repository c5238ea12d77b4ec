-- Mailboxes that have been in hand for long: a handler that takes its time, or a worker that died with a long lease. Their
-- leases end after every turn that waits, or ended long ago: they are looked for at both ends of the queue.
WITH RECURSIVE kinds AS (
    (SELECT kind FROM mailboxes WHERE claimable_at IS NOT NULL ORDER BY kind LIMIT 1)
    UNION ALL
    SELECT (SELECT m.kind FROM mailboxes AS m WHERE m.claimable_at IS NOT NULL AND m.kind > k.kind ORDER BY m.kind LIMIT 1)
    FROM kinds AS k WHERE k.kind IS NOT NULL
), ends AS (
    SELECT m.*
    FROM kinds AS k
    CROSS JOIN LATERAL (
        (SELECT * FROM mailboxes AS m WHERE m.kind = k.kind AND m.claimable_at IS NOT NULL ORDER BY m.claimable_at DESC LIMIT 1000)
        UNION ALL
        (SELECT * FROM mailboxes AS m WHERE m.kind = k.kind AND m.claimable_at IS NOT NULL ORDER BY m.claimable_at LIMIT 1000)
    ) AS m
)
SELECT DISTINCT ON (processing_started_at, kind, key)
       kind, key, processing_status, appended, processed, failures, last_error, locked_by, claimable_at,
       processing_started_at, last_processed_at, created_at
FROM ends
WHERE processing_status = 'processing' AND ($3::text[] IS NULL OR kind = ANY($3))
  AND processing_started_at < clock_timestamp() - make_interval(secs => $1)
ORDER BY processing_started_at, kind, key
LIMIT $2
