-- Move jobs that failed for good to the dead letters, guarded by the fence.
WITH gone AS (
    DELETE FROM job_outbox
    WHERE id = ANY ($1::uuid[]) AND fence = ANY ($2::bigint[]) AND ($3::text IS NULL OR locked_by = $3)
    RETURNING *
)
INSERT INTO job_dead (id, created_at, died_at, fence, priority, attempt_count, max_attempts, job_type, unique_key,
                      concurrency_key, reseller_id, merchant_id, worker, last_error_code, last_error_message, payload)
SELECT g.id, g.created_at, clock_timestamp(), g.fence, g.priority, g.attempt_count, g.max_attempts, g.job_type,
       g.unique_key, g.concurrency_key, g.reseller_id, g.merchant_id, g.locked_by, e.error_code, e.error_message,
       g.payload
FROM gone AS g JOIN unnest($1::uuid[], $4::text[], $5::text[]) AS e (id, error_code, error_message) ON e.id = g.id
RETURNING id, job_type, concurrency_key
