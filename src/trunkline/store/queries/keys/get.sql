-- One key of the tenant or of somebody below it.
SELECT * FROM api_keys
WHERE id = $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
