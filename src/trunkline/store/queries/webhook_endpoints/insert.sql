-- A new endpoint, unless the tenant has one with this URL.
INSERT INTO webhook_endpoints (id, reseller_id, merchant_id, url, event_types, secret_sealed)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT DO NOTHING
RETURNING *
