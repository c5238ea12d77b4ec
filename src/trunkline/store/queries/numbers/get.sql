-- One number that a tenant may use.
SELECT * FROM numbers
WHERE id = $3
  AND ($1::text IS NULL OR reseller_id IS NULL
       OR (reseller_id = $1 AND ($2::text IS NULL OR merchant_id IS NULL OR merchant_id = $2)))
