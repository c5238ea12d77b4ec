-- A new series; no row if the merchant has sent this request_id before.
INSERT INTO reminders (
    id, reseller_id, merchant_id, request_id, request_hash, phone, timezone, starts_at, rrule, message, assistant_id,
    payload, carrier, pool_id, has_windows, priority, max_attempts, late_s, reporting_webhook_url, next_wall, next_at,
    next_no
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)
ON CONFLICT (merchant_id, request_id) DO NOTHING
RETURNING *, clock_timestamp() AS now
