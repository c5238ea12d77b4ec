-- Put jobs back to PENDING, guarded by the fence: after a failure, a snooze, a shutdown or a lost lease.
-- Deleted and inserted again instead of updated, because only an INSERT can meet a newer twin in peace: beside a pending
-- job with the same unique key the older one ends as superseded, in this very statement. One whose cancellation was
-- asked for ends as cancelled.
WITH gone AS (
    DELETE FROM job_outbox
    WHERE id = ANY ($1::uuid[]) AND fence = ANY ($2::bigint[]) AND ($3::text IS NULL OR locked_by = $3)
    RETURNING *
), ends AS (
    SELECT g.*, e.delay_s, e.counted, e.error_code, e.error_message
    FROM gone AS g JOIN unnest($1::uuid[], $4::float8[], $5::boolean[], $6::text[], $7::text[])
         AS e (id, delay_s, counted, error_code, error_message) ON e.id = g.id
), back AS (
    INSERT INTO job_outbox (id, run_at, created_at, fence, priority, attempt_count, max_attempts, job_type, unique_key,
                            concurrency_key, reseller_id, merchant_id, last_error_code, last_error_message, payload)
    SELECT e.id, coalesce(clock_timestamp() + make_interval(secs => e.delay_s), e.run_at), e.created_at, e.fence,
           e.priority, CASE WHEN e.counted THEN e.attempt_count ELSE greatest(e.attempt_count - 1, 0) END,
           e.max_attempts, e.job_type, e.unique_key, e.concurrency_key, e.reseller_id, e.merchant_id,
           coalesce(e.error_code, e.last_error_code), coalesce(e.error_message, e.last_error_message), e.payload
    FROM ends AS e
    WHERE NOT e.cancel_requested
    ORDER BY e.job_type, e.unique_key, e.id
    ON CONFLICT (job_type, unique_key) WHERE status = 'PENDING' AND unique_key IS NOT NULL DO NOTHING
    RETURNING id, run_at
), ended AS (
    INSERT INTO job_history (id, created_at, started_at, finished_at, priority, attempt_count, max_attempts, job_type,
                             outcome, unique_key, concurrency_key, reseller_id, merchant_id, worker,
                             last_error_code, last_error_message)
    SELECT e.id, e.created_at, e.locked_at, clock_timestamp(), e.priority, e.attempt_count, e.max_attempts, e.job_type,
           CASE WHEN e.cancel_requested THEN 'cancelled' ELSE 'superseded' END, e.unique_key, e.concurrency_key,
           e.reseller_id, e.merchant_id, e.locked_by, coalesce(e.error_code, e.last_error_code),
           coalesce(e.error_message, e.last_error_message)
    FROM ends AS e
    WHERE e.id NOT IN (SELECT id FROM back)
    RETURNING id, outcome
)
SELECT e.id, e.job_type, e.priority, e.concurrency_key, b.run_at, d.outcome
FROM ends AS e LEFT JOIN back AS b ON b.id = e.id LEFT JOIN ended AS d ON d.id = e.id
