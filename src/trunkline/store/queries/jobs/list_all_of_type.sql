-- Jobs of one type of everybody, newest first, among the 20,000 newest that fit otherwise: there is no index of finished
-- jobs by type, because every job that ends would have to be written to it. $1 and $2 are not used.
SELECT * FROM (
    SELECT * FROM jobs
    WHERE $1::text IS NULL AND $2::text IS NULL AND status = ANY ($3::text[]) AND id < $5
    ORDER BY id DESC
    LIMIT 20000) AS newest
WHERE job_type = $4
ORDER BY id DESC
LIMIT $6
