-- Claim mailboxes that have work: `queued` past their time, or `processing` under a lease that ran out.
-- With keys given ($2), only those: they were nudged. The fence makes every earlier claim worthless.
WITH due AS (
    SELECT kind, key FROM mailboxes
    WHERE kind = $1 AND ($2::text[] IS NULL OR key = ANY($2))
      AND ((status = 'queued' AND next_at <= clock_timestamp())
           OR (status = 'processing' AND lease_expires_at < clock_timestamp()))
    ORDER BY next_at
    LIMIT $3
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE mailboxes AS m
SET status = 'processing', fence = m.fence + 1, locked_by = $4, processing_started_at = clock_timestamp(),
    lease_expires_at = clock_timestamp() + make_interval(secs => $5)
FROM due
WHERE m.kind = due.kind AND m.key = due.key
RETURNING m.key, m.fence, m.appended, m.failures
