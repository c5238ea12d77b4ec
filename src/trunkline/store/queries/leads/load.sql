-- Staged rows become leads, as `insert` makes one. Of several rows with one request_id the first counts. They go in by key:
-- two uploads of the same rows in another order would otherwise wait for each other.
WITH new AS (
    INSERT INTO leads (
        id, reseller_id, merchant_id, request_id, request_hash, phone, timezone, payload, campaign_id, pool_id, priority,
        max_attempts, reporting_webhook_url, scheduled_at, due_at, closes_at
    )
    SELECT DISTINCT ON (s.merchant_id, s.request_id)
           s.id, s.reseller_id, s.merchant_id, s.request_id, s.request_hash, s.phone, s.timezone, s.payload::jsonb,
           s.campaign_id, s.pool_id, s.priority, s.max_attempts, s.reporting_webhook_url,
           greatest(s.scheduled_at, now()), greatest(coalesce(s.due_at, s.scheduled_at), now()), s.closes_at
    FROM staged_leads AS s
    WHERE NOT EXISTS (
        SELECT FROM do_not_call AS d
        WHERE d.phone = s.phone AND (d.expires_at IS NULL OR d.expires_at > now())
          AND (d.reseller_id IS NULL
               OR (d.reseller_id = s.reseller_id AND (d.merchant_id IS NULL OR d.merchant_id = s.merchant_id))))
    ORDER BY s.merchant_id, s.request_id, s.row_no
    ON CONFLICT (merchant_id, request_id) DO NOTHING
    RETURNING id, merchant_id, due_at
), told AS (
    INSERT INTO decisions (lead_id, reason, merchant_id, until)
    SELECT new.id, 'window', new.merchant_id, new.due_at
    FROM new JOIN staged_leads AS s ON s.id = new.id
    WHERE s.is_deferred
)
SELECT count(*) FROM new
