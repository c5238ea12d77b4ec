-- The pending events of claimed mailboxes, in order, at most $5 of each. Read in a later statement than the claim: an
-- event that committed while the claim waited for its lock is counted there, and would not be seen.
SELECT c.key, e.seq, e.type, e.payload, e.created_at
FROM unnest($2::text[], $3::bigint[], $4::bigint[]) AS c (key, processed, appended)
CROSS JOIN LATERAL (
    SELECT e.seq, e.type, e.payload, e.created_at
    FROM mailbox_events AS e
    WHERE e.kind = $1 AND e.key = c.key AND e.seq > c.processed AND e.seq <= c.appended AND e.processed_at IS NULL
    ORDER BY e.seq
    LIMIT $5) AS e
ORDER BY c.key, e.seq
