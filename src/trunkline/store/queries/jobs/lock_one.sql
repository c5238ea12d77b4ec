-- Lock a job that waits or runs, if this tenant may touch it. What is done with it is decided by a later statement.
SELECT status, job_type, priority, concurrency_key FROM job_outbox
WHERE id = $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
FOR UPDATE
