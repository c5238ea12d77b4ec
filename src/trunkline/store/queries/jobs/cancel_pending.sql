-- End a waiting job that is no longer wanted.
WITH gone AS (
    DELETE FROM job_outbox WHERE id = $1 AND status = 'PENDING' RETURNING *
)
INSERT INTO job_history (id, created_at, finished_at, priority, attempt_count, max_attempts, job_type, outcome,
                         unique_key, concurrency_key, reseller_id, merchant_id, last_error_code, last_error_message)
SELECT id, created_at, clock_timestamp(), priority, attempt_count, max_attempts, job_type, 'cancelled',
       unique_key, concurrency_key, reseller_id, merchant_id, 'cancelled', $2
FROM gone
