-- A tenant's merchants, by id, from after the last one of the page before.
SELECT * FROM merchants
WHERE id > $3
  AND ($1::text IS NULL OR reseller_id = $1)
  AND ($2::text IS NULL OR id = $2)
  AND ($4::text IS NULL OR reseller_id = $4)
ORDER BY id
LIMIT $5
