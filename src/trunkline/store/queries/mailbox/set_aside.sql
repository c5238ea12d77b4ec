-- Set a pending event aside, so that the rest of its mailbox can go on without it.
UPDATE mailbox_events AS e
SET processed_at = clock_timestamp(), error = $4
FROM mailboxes AS m
WHERE m.kind = $1 AND m.key = $2 AND e.mailbox_id = m.id AND e.seq = $3 AND e.processed_at IS NULL
RETURNING e.seq
