-- The pools that a tenant may use, by id, from after the last one of the page before.
SELECT * FROM pools
WHERE id > $3
  AND ($1::text IS NULL OR reseller_id IS NULL
       OR (reseller_id = $1 AND ($2::text IS NULL OR merchant_id IS NULL OR merchant_id = $2)))
ORDER BY id
LIMIT $4
