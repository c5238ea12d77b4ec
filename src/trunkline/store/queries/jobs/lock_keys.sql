-- Second step: lock the keys' rows. Whoever has one locked is claiming or finishing under it; that key is for later.
SELECT k.job_type, k.key
FROM job_keys AS k JOIN unnest($1::text[], $2::text[]) AS w (job_type, key) USING (job_type, key)
ORDER BY k.job_type, k.key
FOR NO KEY UPDATE OF k SKIP LOCKED
