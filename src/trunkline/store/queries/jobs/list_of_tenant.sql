-- A page of a tenant's jobs, newest first, by an index that the platform's own list has no use for.
SELECT * FROM jobs
WHERE reseller_id = $1 AND ($2::text IS NULL OR merchant_id = $2)
  AND status = ANY ($3::text[]) AND ($4::text IS NULL OR job_type = $4) AND id < $5
ORDER BY id DESC
LIMIT $6
