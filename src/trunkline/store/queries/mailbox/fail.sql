-- Put a failed mailbox back with a later turn, or park it as dead after too many failures. Guarded by the fence.
-- $7: whether it is its own fault. What the database could not do just now says nothing of the mailbox.
UPDATE mailboxes
SET processing_status = CASE WHEN $7 AND failures + 1 >= $5 THEN 'dead' ELSE 'queued' END,
    claimable_at = CASE WHEN $7 AND failures + 1 >= $5 THEN NULL ELSE clock_timestamp() + make_interval(secs => $6) END,
    failures = failures + $7::bool::int, last_error = $4, locked_by = NULL
WHERE kind = $1 AND key = $2 AND fence = $3 AND processing_status = 'processing'
RETURNING processing_status
