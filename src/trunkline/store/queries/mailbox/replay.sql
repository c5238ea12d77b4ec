-- Bring dead mailboxes back with a clean slate: one, or all of a kind.
WITH dead AS (
    SELECT kind, key FROM mailboxes
    WHERE kind = $1 AND processing_status = 'dead' AND ($2::text IS NULL OR key = $2)
    ORDER BY key
    LIMIT $3
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE mailboxes AS m
SET processing_status = 'queued', claimable_at = clock_timestamp(), failures = 0
FROM dead
WHERE m.kind = dead.kind AND m.key = dead.key
RETURNING m.key
