-- The numbers that a tenant may use, oldest first.
SELECT * FROM numbers
WHERE id > $3::uuid
  AND ($1::text IS NULL OR reseller_id IS NULL
       OR (reseller_id = $1 AND ($2::text IS NULL OR merchant_id IS NULL OR merchant_id = $2)))
  AND ($4::text IS NULL OR pool_id = $4)
ORDER BY id
LIMIT $5
