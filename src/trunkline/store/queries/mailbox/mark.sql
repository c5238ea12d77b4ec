-- Mark events of a mailbox that is in our hands. Guarded by the fence.
UPDATE mailbox_events AS e
SET processed_at = clock_timestamp()
FROM mailboxes AS m
WHERE m.kind = $1 AND m.key = $2 AND m.fence = $3 AND m.processing_status = 'processing'
  AND e.mailbox_id = m.id AND e.seq = ANY($4::bigint[]) AND e.processed_at IS NULL
RETURNING e.seq
