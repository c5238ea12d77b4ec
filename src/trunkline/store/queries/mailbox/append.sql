-- Append events that are new to their mailbox and add what went in to its counter, under the mailbox's lock.
-- A doubled event has its dedupe key already and raises nothing: it is answered with the number it got before.
-- `idle` becomes `queued`; `processing` stays, because completion compares the counter; `dead` stays, and alarms.
WITH incoming AS (
    SELECT e.*, m.appended, m.processing_status, known.seq AS known_seq
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::jsonb[])
         WITH ORDINALITY AS e (kind, key, dedupe_key, type, payload, position)
    JOIN mailboxes AS m ON m.kind = e.kind AND m.key = e.key
    LEFT JOIN LATERAL (
        SELECT k.seq FROM mailbox_events AS k
        WHERE k.kind = e.kind AND k.key = e.key AND k.dedupe_key = e.dedupe_key) AS known ON true
), fresh AS (
    SELECT i.*, i.appended + row_number() OVER (PARTITION BY i.kind, i.key ORDER BY i.position) AS seq
    FROM incoming AS i WHERE i.known_seq IS NULL
), added AS (
    INSERT INTO mailbox_events (kind, key, seq, dedupe_key, type, payload)
    SELECT kind, key, seq, dedupe_key, type, payload FROM fresh
), raised AS (
    UPDATE mailboxes AS m
    SET appended = last.seq,
        processing_status = CASE WHEN m.processing_status = 'idle' THEN 'queued' ELSE m.processing_status END,
        claimable_at = CASE WHEN m.processing_status = 'idle' THEN clock_timestamp() ELSE m.claimable_at END
    FROM (SELECT kind, key, max(seq) AS seq FROM fresh GROUP BY kind, key) AS last
    WHERE m.kind = last.kind AND m.key = last.key
)
SELECT position, seq, true AS created, processing_status AS status_before FROM fresh
UNION ALL
SELECT position, known_seq, false, processing_status FROM incoming WHERE known_seq IS NOT NULL
