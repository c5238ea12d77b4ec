-- Put a failed mailbox back with a later time, or park it as dead after too many failures. Guarded by the fence.
UPDATE mailboxes
SET status = CASE WHEN failures + 1 >= $5 THEN 'dead' ELSE 'queued' END,
    failures = failures + 1, last_error = $4, locked_by = NULL, lease_expires_at = NULL,
    next_at = clock_timestamp() + make_interval(secs => $6)
WHERE kind = $1 AND key = $2 AND fence = $3 AND status = 'processing'
RETURNING status, failures
