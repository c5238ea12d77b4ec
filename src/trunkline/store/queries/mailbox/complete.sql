-- Complete mailboxes, guarded by the fence. The counter decides in this very UPDATE whether more has come: a look at
-- the events instead would miss one whose append commits a moment later. Rows not returned lost their lease.
WITH locked AS (
    SELECT m.kind, m.key, c.fence, c.appended
    FROM mailboxes AS m JOIN unnest($2::text[], $3::bigint[], $4::bigint[]) AS c (key, fence, appended) ON c.key = m.key
    WHERE m.kind = $1 AND m.status = 'processing' AND m.fence = c.fence
    ORDER BY m.key
    FOR NO KEY UPDATE OF m
)
UPDATE mailboxes AS m
SET status = CASE WHEN m.appended = l.appended THEN 'idle' ELSE 'queued' END,
    processed = l.appended, failures = 0, last_error = NULL, locked_by = NULL, lease_expires_at = NULL,
    next_at = clock_timestamp(), last_processed_at = clock_timestamp()
FROM locked AS l
WHERE m.kind = l.kind AND m.key = l.key AND m.fence = l.fence
RETURNING m.key, m.status
