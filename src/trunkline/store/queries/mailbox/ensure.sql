-- Make sure that the mailboxes exist, in the order in which they are locked afterwards. Nobody waits here or in the
-- statements that follow for longer than $3 milliseconds: one mailbox that somebody holds must not hold up the others.
WITH patience AS MATERIALIZED (SELECT set_config('lock_timeout', $3::text, true) AS set)
INSERT INTO mailboxes (kind, key)
SELECT m.kind, m.key FROM patience CROSS JOIN unnest($1::text[], $2::text[]) AS m (kind, key)
WHERE patience.set IS NOT NULL
ORDER BY m.kind, m.key
ON CONFLICT DO NOTHING
