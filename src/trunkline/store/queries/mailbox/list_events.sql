-- The events of a mailbox after $3, in their order: all, the unprocessed, or those that were set aside.
SELECT m.kind, m.key, e.seq, e.dedupe_key, e.type, e.payload, e.created_at, e.processed_at, e.error
FROM mailboxes AS m JOIN mailbox_events AS e ON e.mailbox_id = m.id
WHERE m.kind = $1 AND m.key = $2 AND e.seq > $3
  AND ($4::text = 'all' OR ($4 = 'unprocessed' AND e.processed_at IS NULL) OR ($4 = 'parked' AND e.error IS NOT NULL))
ORDER BY e.seq
LIMIT $5
