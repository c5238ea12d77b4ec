-- Count what truly runs under locked keys, in a later statement than the locks, and forget keys that nobody uses.
WITH counted AS (
    SELECT k.job_type, k.key, k.running,
           (SELECT count(*) FROM job_outbox AS o WHERE o.status = 'IN_PROGRESS' AND o.concurrency_key IS NOT NULL
            AND o.job_type = k.job_type AND o.concurrency_key = k.key)::int AS truth,
           EXISTS (SELECT FROM job_outbox AS o WHERE o.parked AND o.job_type = k.job_type
                   AND o.concurrency_key = k.key) AS has_parked
    FROM job_keys AS k JOIN unnest($1::text[], $2::text[]) AS w (job_type, key) USING (job_type, key)
), idle AS (
    DELETE FROM job_keys AS k USING counted AS c
    WHERE k.job_type = c.job_type AND k.key = c.key AND c.truth = 0 AND NOT c.has_parked
), corrected AS (
    UPDATE job_keys AS k SET running = c.truth FROM counted AS c
    WHERE k.job_type = c.job_type AND k.key = c.key AND k.running <> c.truth AND (c.truth > 0 OR c.has_parked)
)
SELECT job_type, key, running, truth, has_parked FROM counted
