-- Third step, in a later statement than the locks: what runs under each key is now known. As many jobs as the key has
-- room for are claimed; the others are parked, so that no later claim has to step over them.
WITH keys AS (
    SELECT w.job_type, w.key, greatest(w.running_max - k.running, 0) AS room
    FROM unnest($2::text[], $3::text[], $4::int[]) AS w (job_type, key, running_max)
    JOIN job_keys AS k USING (job_type, key)
), waiting AS (
    SELECT o.id, o.job_type, o.concurrency_key, o.priority, o.run_at FROM job_outbox AS o
    WHERE o.id = ANY ($1::uuid[]) AND o.status = 'PENDING' AND NOT o.parked
    FOR NO KEY UPDATE SKIP LOCKED
), ranked AS (
    SELECT w.id, k.room,
           row_number() OVER (PARTITION BY w.job_type, w.concurrency_key ORDER BY w.priority, w.run_at, w.id) AS place
    FROM waiting AS w JOIN keys AS k ON k.job_type = w.job_type AND k.key = w.concurrency_key
), parked AS (
    UPDATE job_outbox SET parked = true
    WHERE id = ANY (ARRAY(SELECT id FROM ranked WHERE place > room))
), claimed AS (
    UPDATE job_outbox
    SET status = 'IN_PROGRESS', attempt_count = attempt_count + 1,
        fence = greatest(fence + 1, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint),
        locked_by = $5, locked_at = statement_timestamp(),
        lease_expires_at = clock_timestamp() + make_interval(secs => $6)
    WHERE id = ANY (ARRAY(SELECT id FROM ranked WHERE place <= room))
    RETURNING id, fence, job_type, priority, run_at, created_at, attempt_count, max_attempts, unique_key,
              concurrency_key, reseller_id, merchant_id, payload
), counted AS (
    UPDATE job_keys AS k SET running = k.running + c.n
    FROM (SELECT job_type, concurrency_key, count(*) AS n FROM claimed GROUP BY 1, 2) AS c
    WHERE k.job_type = c.job_type AND k.key = c.concurrency_key
)
SELECT * FROM claimed
