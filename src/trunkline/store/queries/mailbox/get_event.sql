-- One of them, for whoever looks into a mailbox.
SELECT kind, key, seq, dedupe_key, type, payload, created_at, processed_at, error
FROM mailbox_events
WHERE kind = $1 AND key = $2 AND seq = $3
