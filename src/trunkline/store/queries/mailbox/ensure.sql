-- Make sure that the mailboxes exist, in the order in which they are locked afterwards.
INSERT INTO mailboxes (kind, key)
SELECT DISTINCT kind, key FROM unnest($1::text[], $2::text[]) AS m (kind, key) ORDER BY kind, key
ON CONFLICT DO NOTHING
