-- The pending events of claimed mailboxes, in order. Read in a later statement than the claim, up to its counter.
SELECT e.key, e.seq, e.type, e.payload, e.created_at
FROM mailbox_events AS e
JOIN unnest($2::text[], $3::bigint[]) AS c (key, appended) ON c.key = e.key
WHERE e.kind = $1 AND e.processed_at IS NULL AND e.seq <= c.appended
ORDER BY e.key, e.seq
