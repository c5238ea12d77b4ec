-- Append events that are new to their mailbox and add what went in to its counter, under the mailbox's lock.
-- A doubled event has its dedupe key already and raises nothing. `idle` becomes `queued`; `processing` stays, because
-- completion compares the counter; `dead` stays, and the caller raises an alarm.
WITH incoming AS (
    SELECT DISTINCT ON (kind, key, dedupe_key) kind, key, dedupe_key, type, payload, position
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::jsonb[])
         WITH ORDINALITY AS e (kind, key, dedupe_key, type, payload, position)
    ORDER BY kind, key, dedupe_key, position
), fresh AS (
    SELECT i.*, row_number() OVER (PARTITION BY i.kind, i.key ORDER BY i.position) AS n
    FROM incoming AS i
    WHERE NOT EXISTS (
        SELECT FROM mailbox_events AS e
        WHERE e.kind = i.kind AND e.key = i.key AND e.dedupe_key = i.dedupe_key)
), added AS (
    INSERT INTO mailbox_events (kind, key, seq, dedupe_key, type, payload)
    SELECT f.kind, f.key, m.appended + f.n, f.dedupe_key, f.type, f.payload
    FROM fresh AS f JOIN mailboxes AS m ON m.kind = f.kind AND m.key = f.key
    RETURNING kind, key
), counted AS (
    SELECT kind, key, count(*) AS n FROM added GROUP BY kind, key
)
UPDATE mailboxes AS m
SET appended = m.appended + c.n,
    status = CASE WHEN m.status = 'idle' THEN 'queued' ELSE m.status END,
    next_at = CASE WHEN m.status = 'idle' THEN clock_timestamp() ELSE m.next_at END
FROM counted AS c
WHERE m.kind = c.kind AND m.key = c.key
RETURNING m.kind, m.key, m.status, c.n::int AS added
