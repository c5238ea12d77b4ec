-- One event of a mailbox.
SELECT m.kind, m.key, e.seq, e.dedupe_key, e.type, e.payload, e.created_at, e.processed_at, e.error
FROM mailboxes AS m JOIN mailbox_events AS e ON e.mailbox_id = m.id
WHERE m.kind = $1 AND m.key = $2 AND e.seq = $3
