-- A page of jobs of everybody, newest first. $1 and $2 are not used: the statement has a twin for tenants.
SELECT * FROM jobs
WHERE $1::text IS NULL AND $2::text IS NULL
  AND status = ANY ($3::text[]) AND ($4::text IS NULL OR job_type = $4) AND id < $5
ORDER BY id DESC
LIMIT $6
