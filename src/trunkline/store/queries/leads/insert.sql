-- A new lead; no row if the merchant has sent this request_id before. Postgres decides what "now" is: a moment that
-- has passed, or none, is now.
INSERT INTO leads (
    id, reseller_id, merchant_id, request_id, request_hash, phone, payload, campaign_id, pool_id, priority,
    max_attempts, reporting_webhook_url, scheduled_at, due_at
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, greatest($13, now()), greatest($13, now()))
ON CONFLICT (merchant_id, request_id) DO NOTHING
RETURNING *
