-- Keys to count anew: those under which something is said to run or has to wait. One that is locked is in use, and well.
SELECT k.job_type, k.key FROM job_keys AS k
WHERE (k.job_type, k.key) > ($1, $2)
ORDER BY k.job_type, k.key
LIMIT $3
FOR UPDATE SKIP LOCKED
