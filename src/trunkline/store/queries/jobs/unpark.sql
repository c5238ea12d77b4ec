-- Make runnable what now has room under these keys, in a later statement than their locks: a job that was parked while
-- we waited for the lock must be seen.
UPDATE job_outbox SET parked = false
WHERE id = ANY (ARRAY(
    SELECT j.id
    FROM unnest($1::text[], $2::text[], $3::int[]) AS f (job_type, key, running_max)
    JOIN job_keys AS k USING (job_type, key)
    CROSS JOIN LATERAL (
        SELECT o.id FROM job_outbox AS o
        WHERE o.parked AND o.job_type = f.job_type AND o.concurrency_key = f.key
        ORDER BY o.priority, o.run_at, o.id
        LIMIT greatest(f.running_max - k.running, 0)
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS j))
RETURNING job_type, priority, run_at
