-- Enqueue, in the order of unique keys, which is the order in which they are locked everywhere.
-- A pending twin is kept and made as early and as urgent as the earlier and more urgent of the two. It is updated also
-- when nothing changes: the row lock keeps it from being claimed before our transaction has committed what it is about.
INSERT INTO job_outbox (id, job_type, priority, run_at, max_attempts, unique_key, concurrency_key,
                        reseller_id, merchant_id, payload)
SELECT id, job_type, priority, greatest(run_at, now()), max_attempts, unique_key, concurrency_key,
       reseller_id, merchant_id, payload
FROM unnest($1::uuid[], $2::text[], $3::smallint[], $4::timestamptz[], $5::smallint[], $6::text[], $7::text[],
            $8::text[], $9::text[], $10::text[])
     AS j (id, job_type, priority, run_at, max_attempts, unique_key, concurrency_key, reseller_id, merchant_id, payload)
ORDER BY job_type, unique_key, id
ON CONFLICT (job_type, unique_key) WHERE status = 'PENDING' AND unique_key IS NOT NULL
DO UPDATE SET run_at = least(job_outbox.run_at, excluded.run_at),
              priority = least(job_outbox.priority, excluded.priority)
RETURNING id, job_type, priority, unique_key, concurrency_key, run_at
