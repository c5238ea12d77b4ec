-- Let a waiting job run now instead of later.
UPDATE job_outbox SET run_at = least(run_at, clock_timestamp()) WHERE id = $1 AND status = 'PENDING'
RETURNING id, job_type, priority, unique_key, concurrency_key, run_at
