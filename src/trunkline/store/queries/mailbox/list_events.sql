-- The events of a mailbox after $3, in their order: all, the unprocessed, or those that were set aside.
SELECT kind, key, seq, dedupe_key, type, payload, created_at, processed_at, error
FROM mailbox_events
WHERE kind = $1 AND key = $2 AND seq > $3
  AND ($4::text = 'all' OR ($4 = 'unprocessed' AND processed_at IS NULL) OR ($4 = 'parked' AND error IS NOT NULL))
ORDER BY seq
LIMIT $5
