-- From `idle` to `queued`, if it is idle.
UPDATE mailboxes
SET processing_status = 'queued', claimable_at = clock_timestamp()
WHERE kind = $1 AND key = $2 AND processing_status = 'idle'
RETURNING key
