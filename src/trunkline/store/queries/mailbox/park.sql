-- Keep the reason beside events that could not be read. They were marked by the completion in the same transaction.
UPDATE mailbox_events AS e
SET error = p.error, processed_at = COALESCE(e.processed_at, clock_timestamp())
FROM unnest($2::text[], $3::bigint[], $4::text[]) AS p (key, seq, error)
JOIN mailboxes AS m ON m.kind = $1 AND m.key = p.key
WHERE e.mailbox_id = m.id AND e.seq = p.seq
