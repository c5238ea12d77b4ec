-- name: by_url
-- A tenant's endpoint by its URL.
SELECT * FROM webhook_endpoints WHERE reseller_id = $1 AND merchant_id IS NOT DISTINCT FROM $2 AND url = $3

-- name: delete
-- Delete an endpoint. Its pending deliveries find it gone and end.
DELETE FROM webhook_endpoints WHERE id = $1

-- name: disable
-- The receiver replied 410. Only once: a later 410 of a running job changes nothing.
UPDATE webhook_endpoints SET status = 'disabled', disabled_reason = $2, updated_at = now()
WHERE id = $1 AND status = 'active'
RETURNING id

-- name: for_delivery
-- The endpoint as a delivery needs it, at present.
SELECT id, url, status, secret_sealed,
       CASE WHEN old_secret_until > now() THEN old_secret_sealed END AS old_secret_sealed
FROM webhook_endpoints WHERE id = $1

-- name: get
-- One endpoint, if this tenant may see it.
SELECT * FROM webhook_endpoints
WHERE id = $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)

-- name: insert
-- A new endpoint, unless the tenant has one with this URL.
INSERT INTO webhook_endpoints ({columns}) VALUES ({values})
ON CONFLICT DO NOTHING
RETURNING *

-- name: list
-- A page of endpoints that this tenant may see, newest first.
SELECT * FROM webhook_endpoints
WHERE ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2) AND id < $3
ORDER BY id DESC
LIMIT $4

-- name: rotate
-- A new secret. The old one goes on signing beside it for a while.
UPDATE webhook_endpoints
SET old_secret_sealed = secret_sealed, old_secret_until = now() + make_interval(secs => $3), secret_sealed = $2,
    updated_at = now()
WHERE id = $1
RETURNING *

-- name: subscribed
-- The subscribers of an event: active endpoints of the merchant and of its reseller.
SELECT id FROM webhook_endpoints
WHERE reseller_id = $1 AND (merchant_id IS NULL OR merchant_id = $2) AND status = 'active'
  AND event_types && ARRAY['*', $3]
ORDER BY id

-- name: update
-- Change the named fields. With the status the caller names the reason why it is disabled, or NULL.
UPDATE webhook_endpoints SET updated_at = now(){changes}
WHERE id = $1
RETURNING *
