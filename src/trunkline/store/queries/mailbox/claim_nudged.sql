-- Claim the mailboxes of nudges, as far as they have work. The rest is as in claim_due.
WITH due AS (
    SELECT kind, key FROM mailboxes
    WHERE kind = $1 AND key = ANY($2::text[]) AND claimable_at <= statement_timestamp()
    ORDER BY claimable_at
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
