-- Jobs whose worker let its lease run out, locked for the rest of the transaction: a worker that comes back now waits
-- here and then finds that the job is no longer its own.
SELECT id, fence, job_type, priority, attempt_count, max_attempts, concurrency_key, locked_by
FROM job_outbox
WHERE status = 'IN_PROGRESS' AND lease_expires_at >= $1 AND lease_expires_at < statement_timestamp()
ORDER BY lease_expires_at
LIMIT $2
FOR UPDATE SKIP LOCKED
