-- Every lane of these types that has a waiting job, and its first one. From the very beginning: this is what finds a job
-- whose poke was lost or whose transaction was slow, and the price is stepping over what vacuum has not yet removed.
WITH RECURSIVE types AS (
    SELECT job_type FROM unnest($1::text[]) AS t (job_type)
    WHERE NOT EXISTS (SELECT FROM job_pauses AS p WHERE p.job_type = t.job_type)
), plain AS (
    SELECT t.job_type, j.priority, j.run_at, j.id
    FROM types AS t CROSS JOIN LATERAL (
        SELECT o.priority, o.run_at, o.id FROM job_outbox AS o
        WHERE o.status = 'PENDING' AND o.concurrency_key IS NULL AND o.job_type = t.job_type
        ORDER BY o.priority, o.run_at, o.id LIMIT 1) AS j
    UNION ALL
    SELECT l.job_type, j.priority, j.run_at, j.id
    FROM plain AS l CROSS JOIN LATERAL (
        SELECT o.priority, o.run_at, o.id FROM job_outbox AS o
        WHERE o.status = 'PENDING' AND o.concurrency_key IS NULL AND o.job_type = l.job_type
          AND o.priority > l.priority
        ORDER BY o.priority, o.run_at, o.id LIMIT 1) AS j
), keyed AS (
    SELECT t.job_type, j.priority, j.run_at, j.id
    FROM types AS t CROSS JOIN LATERAL (
        SELECT o.priority, o.run_at, o.id FROM job_outbox AS o
        WHERE o.status = 'PENDING' AND o.concurrency_key IS NOT NULL AND NOT o.parked AND o.job_type = t.job_type
        ORDER BY o.priority, o.run_at, o.id LIMIT 1) AS j
    UNION ALL
    SELECT l.job_type, j.priority, j.run_at, j.id
    FROM keyed AS l CROSS JOIN LATERAL (
        SELECT o.priority, o.run_at, o.id FROM job_outbox AS o
        WHERE o.status = 'PENDING' AND o.concurrency_key IS NOT NULL AND NOT o.parked AND o.job_type = l.job_type
          AND o.priority > l.priority
        ORDER BY o.priority, o.run_at, o.id LIMIT 1) AS j
)
SELECT job_type, priority, false AS keyed, run_at, id,
       extract(epoch FROM run_at - clock_timestamp())::float8 AS due_in_s FROM plain
UNION ALL
SELECT job_type, priority, true, run_at, id,
       extract(epoch FROM run_at - clock_timestamp())::float8 FROM keyed
