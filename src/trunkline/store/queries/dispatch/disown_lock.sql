-- Before attempts are disowned: their leads, in id order. Whoever committed them, or is about to, holds these rows, so
-- this waits for the commit whose reply was lost.
SELECT id FROM leads WHERE id = ANY($1::uuid[]) ORDER BY id FOR NO KEY UPDATE
