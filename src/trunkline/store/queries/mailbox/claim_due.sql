-- Claim mailboxes that have work: `queued` whose turn has come, or `processing` under a lease that ran out. This is
-- the sweep, and the scan at start. A lost lease counts as a failure: what kills its worker must end as dead too.
WITH due AS (
    SELECT kind, key FROM mailboxes
    WHERE kind = $1 AND claimable_at <= statement_timestamp()
    ORDER BY claimable_at
    LIMIT $2
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE mailboxes AS m
SET processing_status = 'processing', fence = nextval('mailbox_fences'), locked_by = $3,
    processing_started_at = clock_timestamp(),
    claimable_at = clock_timestamp() + make_interval(secs => $4),
    failures = m.failures + (m.processing_status = 'processing')::int,
    last_error = CASE WHEN m.processing_status = 'processing' THEN 'its worker was lost: ' || m.locked_by
                      ELSE m.last_error END
FROM due
WHERE m.kind = due.kind AND m.key = due.key
RETURNING m.key, m.fence, m.processed, m.appended, m.failures
