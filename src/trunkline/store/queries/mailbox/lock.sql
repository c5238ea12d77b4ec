-- Lock the mailboxes of an append, sorted. Their counters are read by the next statement, under these locks.
SELECT m.kind, m.key FROM mailboxes AS m
WHERE (m.kind, m.key) IN (SELECT kind, key FROM unnest($1::text[], $2::text[]) AS a (kind, key))
ORDER BY m.kind, m.key
FOR NO KEY UPDATE
