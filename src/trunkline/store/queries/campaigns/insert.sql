-- A new campaign; no row if the merchant has sent this request_id before.
INSERT INTO campaigns (
    id, reseller_id, merchant_id, request_id, request_hash, name, pool_id, priority, max_attempts, given_pool_id,
    given_priority, given_max_attempts, starts_at, ends_at, reporting_webhook_url
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $7, $8, $9, $10, $11, $12)
ON CONFLICT (merchant_id, request_id) DO NOTHING
RETURNING *, clock_timestamp() AS now
