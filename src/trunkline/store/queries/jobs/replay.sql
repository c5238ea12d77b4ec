-- Put dead letters back to PENDING, with all their attempts before them. Beside a pending job with the same unique key
-- the letter ends as superseded.
WITH gone AS (
    DELETE FROM job_dead WHERE id = ANY ($1::uuid[]) RETURNING *
), back AS (
    INSERT INTO job_outbox (id, run_at, created_at, fence, priority, max_attempts, job_type, unique_key,
                            concurrency_key, reseller_id, merchant_id, last_error_code, last_error_message, payload)
    SELECT id, clock_timestamp(), created_at, fence, priority, max_attempts, job_type, unique_key,
           concurrency_key, reseller_id, merchant_id, last_error_code, last_error_message, payload
    FROM gone
    ORDER BY job_type, unique_key, id
    ON CONFLICT (job_type, unique_key) WHERE status = 'PENDING' AND unique_key IS NOT NULL DO NOTHING
    RETURNING id, job_type, priority, unique_key, concurrency_key, run_at
), ended AS (
    INSERT INTO job_history (id, created_at, finished_at, priority, attempt_count, max_attempts, job_type, outcome,
                             unique_key, concurrency_key, reseller_id, merchant_id, worker,
                             last_error_code, last_error_message)
    SELECT id, created_at, clock_timestamp(), priority, attempt_count, max_attempts, job_type, 'superseded',
           unique_key, concurrency_key, reseller_id, merchant_id, worker, last_error_code, last_error_message
    FROM gone WHERE id NOT IN (SELECT id FROM back)
)
SELECT * FROM back
