-- A page of endpoints that this tenant may see, newest first.
SELECT * FROM webhook_endpoints
WHERE ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2) AND id < $3
ORDER BY id DESC
LIMIT $4
