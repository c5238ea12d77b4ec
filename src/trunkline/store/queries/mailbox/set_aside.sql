-- Set a pending event aside, so that the rest of its mailbox can go on without it.
UPDATE mailbox_events
SET processed_at = clock_timestamp(), error = $4
WHERE kind = $1 AND key = $2 AND seq = $3 AND processed_at IS NULL
RETURNING seq
