-- Give claims back unhandled, when a worker stops: the next one takes them at once, and nothing counts as a failure.
WITH ours AS (
    SELECT m.kind, m.key
    FROM unnest($2::text[], $3::bigint[]) AS c (key, fence) JOIN mailboxes AS m ON m.kind = $1 AND m.key = c.key
    WHERE m.fence = c.fence AND m.processing_status = 'processing'
    ORDER BY m.key
    FOR NO KEY UPDATE OF m
)
UPDATE mailboxes AS m
SET processing_status = 'queued', claimable_at = clock_timestamp(), locked_by = NULL
FROM ours
WHERE m.kind = ours.kind AND m.key = ours.key
RETURNING m.key
