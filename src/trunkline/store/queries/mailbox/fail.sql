-- Put a failed mailbox back with a later turn, or park it as dead after too many failures. Guarded by the fence.
UPDATE mailboxes
SET processing_status = CASE WHEN failures + 1 >= $5 THEN 'dead' ELSE 'queued' END,
    claimable_at = CASE WHEN failures + 1 >= $5 THEN NULL ELSE clock_timestamp() + make_interval(secs => $6) END,
    failures = failures + 1, last_error = $4, locked_by = NULL
WHERE kind = $1 AND key = $2 AND fence = $3 AND processing_status = 'processing'
RETURNING processing_status
