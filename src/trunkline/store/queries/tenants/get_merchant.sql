-- One merchant, if it belongs to the tenant.
SELECT * FROM merchants
WHERE id = $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR id = $2)
