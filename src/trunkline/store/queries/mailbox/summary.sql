-- The backlog, the stuck and the dead in numbers, by kind, of all kinds or of these. Read from the partial indexes, kind by
-- kind: idle mailboxes cost nothing. Of each kind at most $2 are counted (NULL: all), those in hand before those that
-- wait; since when the oldest waits is also asked from the other end.
WITH RECURSIVE kinds AS (
    (SELECT kind FROM mailboxes WHERE claimable_at IS NOT NULL ORDER BY kind LIMIT 1)
    UNION ALL
    SELECT (SELECT m.kind FROM mailboxes AS m WHERE m.claimable_at IS NOT NULL AND m.kind > k.kind ORDER BY m.kind LIMIT 1)
    FROM kinds AS k WHERE k.kind IS NOT NULL
), dead_kinds AS (
    (SELECT kind FROM mailboxes WHERE processing_status = 'dead' ORDER BY kind LIMIT 1)
    UNION ALL
    SELECT (SELECT m.kind FROM mailboxes AS m WHERE m.processing_status = 'dead' AND m.kind > k.kind ORDER BY m.kind LIMIT 1)
    FROM dead_kinds AS k WHERE k.kind IS NOT NULL
), active AS (
    SELECT k.kind, m.*
    FROM kinds AS k
    CROSS JOIN LATERAL (
        (SELECT processing_status, appended - processed AS events, coalesce(last_processed_at, created_at) AS since, true AS counts
         FROM mailboxes AS m WHERE m.kind = k.kind AND m.claimable_at IS NOT NULL
         ORDER BY m.claimable_at DESC LIMIT $2)
        UNION ALL
        (SELECT processing_status, 0, coalesce(last_processed_at, created_at), false
         FROM mailboxes AS m WHERE m.kind = k.kind AND m.claimable_at IS NOT NULL
         ORDER BY m.claimable_at LIMIT 100)) AS m
    UNION ALL
    SELECT k.kind, m.*
    FROM dead_kinds AS k
    CROSS JOIN LATERAL (
        SELECT processing_status, appended - processed, coalesce(last_processed_at, created_at), true
        FROM mailboxes AS m WHERE m.kind = k.kind AND m.processing_status = 'dead'
        ORDER BY m.key LIMIT $2) AS m
)
SELECT kind, processing_status AS status, count(*) FILTER (WHERE counts) AS mailboxes, sum(events)::bigint AS events,
       extract(epoch FROM clock_timestamp() - min(since))::float8 AS oldest_s
FROM active
WHERE $1::text[] IS NULL OR kind = ANY($1)
GROUP BY kind, processing_status
HAVING count(*) FILTER (WHERE counts) > 0
ORDER BY kind, processing_status
