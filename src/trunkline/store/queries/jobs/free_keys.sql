-- Jobs under these keys have ended, in this transaction. Locked in order before they are changed.
WITH locked AS (
    SELECT k.job_type, k.key, f.n
    FROM job_keys AS k JOIN unnest($1::text[], $2::text[], $3::int[]) AS f (job_type, key, n) USING (job_type, key)
    ORDER BY k.job_type, k.key
    FOR NO KEY UPDATE OF k
)
UPDATE job_keys AS k SET running = greatest(k.running - l.n, 0)
FROM locked AS l
WHERE k.job_type = l.job_type AND k.key = l.key
