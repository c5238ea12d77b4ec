-- A tenant's jobs of one type, newest first, among its 20,000 newest that fit otherwise (see `list_all_of_type`).
SELECT * FROM (
    SELECT * FROM jobs
    WHERE reseller_id = $1 AND ($2::text IS NULL OR merchant_id = $2) AND status = ANY ($3::text[]) AND id < $5
    ORDER BY id DESC
    LIMIT 20000) AS newest
WHERE job_type = $4
ORDER BY id DESC
LIMIT $6
