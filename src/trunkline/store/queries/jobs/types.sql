-- What there is of each type: waiting and dead jobs, counted up to a limit, and whether it is paused. Counting all of a
-- large backlog again and again would cost more than the jobs themselves. In the order of the indexes, which are then
-- used: a type that has nothing would be looked for in the whole table.
SELECT t.job_type, p.reason AS paused_reason, p.paused_by, p.paused_at,
       (SELECT count(*) FROM (SELECT FROM job_outbox AS o WHERE o.status = 'PENDING' AND o.concurrency_key IS NULL
                              AND o.job_type = t.job_type ORDER BY o.priority, o.run_at, o.id LIMIT $2) AS x)
       + (SELECT count(*) FROM (SELECT FROM job_outbox AS o WHERE o.status = 'PENDING' AND NOT o.parked
                                AND o.concurrency_key IS NOT NULL AND o.job_type = t.job_type
                                ORDER BY o.priority, o.run_at, o.id LIMIT $2) AS x)
       + (SELECT count(*) FROM (SELECT FROM job_outbox AS o WHERE o.parked AND o.job_type = t.job_type
                                ORDER BY o.concurrency_key, o.priority, o.run_at LIMIT $2) AS x)
       AS pending,
       (SELECT count(*) FROM (SELECT FROM job_dead AS d WHERE d.job_type = t.job_type ORDER BY d.id LIMIT $2) AS x) AS dead
FROM unnest($1::text[]) AS t (job_type) LEFT JOIN job_pauses AS p USING (job_type)
