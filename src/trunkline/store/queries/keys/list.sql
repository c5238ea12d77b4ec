-- The keys of a tenant and of everybody below it, oldest first.
SELECT * FROM api_keys
WHERE id > $3::uuid
  AND ($1::text IS NULL OR reseller_id = $1)
  AND ($2::text IS NULL OR merchant_id = $2)
ORDER BY id
LIMIT $4
