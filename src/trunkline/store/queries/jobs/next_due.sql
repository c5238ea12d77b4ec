-- When the next job of each of these lanes is due, and what time it is. What the claim before looked at, up to $4, is
-- left out: it was claimed, or is blocked, and a worker that counted it would spin. What came after that is not, also if
-- it became due meanwhile: the claim was too early for it, and nobody else would look.
SELECT l.job_type, l.priority, l.keyed, statement_timestamp() AS seen_at,
       extract(epoch FROM j.run_at - clock_timestamp())::float8 AS due_in_s
FROM unnest($1::text[], $2::smallint[], $3::boolean[]) AS l (job_type, priority, keyed)
LEFT JOIN LATERAL (
    (SELECT o.run_at FROM job_outbox AS o
     WHERE NOT l.keyed AND o.status = 'PENDING' AND o.concurrency_key IS NULL
       AND o.job_type = l.job_type AND o.priority = l.priority AND o.run_at > $4
     ORDER BY o.run_at LIMIT 1)
    UNION ALL
    (SELECT o.run_at FROM job_outbox AS o
     WHERE l.keyed AND o.status = 'PENDING' AND o.concurrency_key IS NOT NULL AND NOT o.parked
       AND o.job_type = l.job_type AND o.priority = l.priority AND o.run_at > $4
     ORDER BY o.run_at LIMIT 1)
) AS j ON true
