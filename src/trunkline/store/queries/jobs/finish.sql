-- Move finished jobs out, guarded by the fence. Rows not returned belong to somebody else now, or are gone.
-- A fence is one claim's of a worker, and a worker holds a job under one claim: two lists say the same as a list of pairs.
WITH gone AS (
    DELETE FROM job_outbox
    WHERE id = ANY ($1::uuid[]) AND fence = ANY ($2::bigint[]) AND ($3::text IS NULL OR locked_by = $3)
    RETURNING *
), ends AS (
    SELECT * FROM unnest($1::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::real[], $9::text[])
         AS e (id, outcome, result, error_code, error_message, fraction, note)
)
INSERT INTO job_history (id, created_at, started_at, finished_at, priority, attempt_count, max_attempts, fraction,
                         job_type, outcome, unique_key, concurrency_key, reseller_id, merchant_id, worker,
                         last_error_code, last_error_message, note, result)
SELECT g.id, g.created_at, g.locked_at, clock_timestamp(), g.priority, g.attempt_count, g.max_attempts, e.fraction,
       g.job_type, e.outcome, g.unique_key, g.concurrency_key, g.reseller_id, g.merchant_id, g.locked_by,
       coalesce(e.error_code, g.last_error_code), coalesce(e.error_message, g.last_error_message), e.note, e.result
FROM gone AS g JOIN ends AS e ON e.id = g.id
RETURNING id, job_type, concurrency_key
