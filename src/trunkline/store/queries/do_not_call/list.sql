-- A tenant's own entries and those below it, newest first.
SELECT * FROM do_not_call
WHERE id < $3::uuid AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
  AND ($4::text IS NULL OR phone = $4)
ORDER BY id DESC
LIMIT $5
