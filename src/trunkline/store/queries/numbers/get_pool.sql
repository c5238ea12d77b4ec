-- One pool that a tenant may use: its own, one of those below it, its reseller's, or the platform's.
SELECT * FROM pools
WHERE id = $3
  AND ($1::text IS NULL OR reseller_id IS NULL
       OR (reseller_id = $1 AND ($2::text IS NULL OR merchant_id IS NULL OR merchant_id = $2)))
