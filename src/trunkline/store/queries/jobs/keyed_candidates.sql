-- First step of a claim under concurrency keys: due jobs in the order of their lanes, and a row for each of their keys.
-- Each with the moment of the look; if there are none, that moment comes alone.
-- Committed by itself: another claim that adds the same key would wait for this one's end. And only for keys that are
-- not there: ON CONFLICT DO NOTHING waits for whoever is changing the row that it would do nothing about.
WITH lanes AS (
    SELECT l.job_type, l.priority, l.floor_at, l.floor_id
    FROM unnest($1::text[], $2::smallint[], $3::timestamptz[], $4::uuid[])
         WITH ORDINALITY AS l (job_type, priority, floor_at, floor_id, place)
    WHERE NOT EXISTS (SELECT FROM job_pauses AS p WHERE p.job_type = l.job_type)
    ORDER BY l.place
), candidates AS MATERIALIZED (
    SELECT j.id, j.job_type, j.concurrency_key
    FROM lanes AS l CROSS JOIN LATERAL (
        SELECT o.id, o.job_type, o.concurrency_key FROM job_outbox AS o
        WHERE o.status = 'PENDING' AND o.concurrency_key IS NOT NULL AND NOT o.parked AND o.job_type = l.job_type
          AND o.priority = l.priority AND (o.run_at, o.id) >= (l.floor_at, l.floor_id)
          AND o.run_at <= statement_timestamp()
        ORDER BY o.run_at, o.id
        LIMIT $5
    ) AS j
    LIMIT $5
), known AS (
    INSERT INTO job_keys (job_type, key)
    SELECT DISTINCT c.job_type, c.concurrency_key FROM candidates AS c
    WHERE NOT EXISTS (SELECT FROM job_keys AS k WHERE k.job_type = c.job_type AND k.key = c.concurrency_key)
    ORDER BY 1, 2
    ON CONFLICT DO NOTHING
)
SELECT statement_timestamp() AS looked_at, c.id, c.job_type, c.concurrency_key
FROM (SELECT) AS always LEFT JOIN candidates AS c ON true
