-- One endpoint, if this tenant may see it.
SELECT * FROM webhook_endpoints
WHERE id = $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
