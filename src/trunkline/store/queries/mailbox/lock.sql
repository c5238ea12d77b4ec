-- Lock the mailboxes of an append, sorted. Their counters are read by the next statement, under these locks.
SELECT m.kind, m.key
FROM unnest($1::text[], $2::text[]) AS a (kind, key) JOIN mailboxes AS m ON m.kind = a.kind AND m.key = a.key
ORDER BY m.kind, m.key
FOR NO KEY UPDATE OF m
