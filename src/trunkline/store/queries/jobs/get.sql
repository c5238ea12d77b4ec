-- One job, if this tenant may see it, and how far it says that it is.
SELECT j.id, j.job_type, j.status, j.outcome, j.priority, j.run_at, j.created_at, j.started_at, j.finished_at,
       j.attempt_count, j.max_attempts, j.locked_by, j.lease_expires_at, j.unique_key, j.concurrency_key,
       j.cancel_requested, j.reseller_id, j.merchant_id, j.last_error_code, j.last_error_message,
       coalesce(j.fraction, p.fraction) AS fraction, coalesce(j.note, p.note) AS note, j.result, j.payload
FROM jobs AS j LEFT JOIN job_progress AS p ON p.job_id = j.id
WHERE j.id = $3 AND ($1::text IS NULL OR j.reseller_id = $1) AND ($2::text IS NULL OR j.merchant_id = $2)
