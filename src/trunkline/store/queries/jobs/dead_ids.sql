-- Dead letters that may be replayed, oldest first.
SELECT id FROM job_dead
WHERE ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
  AND ($3::text IS NULL OR job_type = $3) AND ($4::uuid IS NULL OR id = $4)
ORDER BY id
LIMIT $5
FOR UPDATE SKIP LOCKED
