-- A new lead; no row if the merchant has sent this request_id before, or if somebody has listed the person as not to be
-- called. Postgres decides what "now" is: a moment that has passed, or none, is now. A lead that is wanted now and waits
-- for its window carries the reason from the start.
WITH new AS (
    INSERT INTO leads (
        id, reseller_id, merchant_id, request_id, request_hash, phone, timezone, payload, campaign_id, pool_id, priority,
        max_attempts, reporting_webhook_url, scheduled_at, due_at, closes_at
    )
    SELECT $1::uuid, $2::text, $3::text, $4::text, $5::bytea, $6::text, $7::text, $8::jsonb, $9::uuid, $10::text,
           $11::smallint, $12::smallint, $13::text, greatest($14::timestamptz, now()),
           greatest(coalesce($15::timestamptz, $14), now()), $16::timestamptz
    WHERE NOT EXISTS (
        SELECT FROM do_not_call AS d
        WHERE d.phone = $6 AND (d.expires_at IS NULL OR d.expires_at > now())
          AND (d.reseller_id IS NULL OR (d.reseller_id = $2 AND (d.merchant_id IS NULL OR d.merchant_id = $3))))
    ON CONFLICT (merchant_id, request_id) DO NOTHING
    RETURNING *
), told AS (
    INSERT INTO decisions (lead_id, reason, merchant_id, until)
    SELECT id, 'window', merchant_id, due_at FROM new WHERE $17::boolean
)
SELECT * FROM new
