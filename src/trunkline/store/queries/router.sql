-- name: adopt_merchant
-- A merchant's tier that an operator changed in Valkey by hand; '' removes it. Only if it is still as the leader read it (''
-- for none): a leader that was paused meanwhile must not undo a later change.
WITH removed AS (
    DELETE FROM router_merchants WHERE merchant_id = $1 AND config = $3 AND $2 = ''
),
changed AS (
    UPDATE router_merchants SET config = $2, changed_at = clock_timestamp()
    WHERE merchant_id = $1 AND config = $3 AND $2 <> ''
)
INSERT INTO router_merchants (merchant_id, config)
SELECT $1::text, $2::text WHERE $2 <> '' AND $3 = ''
ON CONFLICT (merchant_id) DO NOTHING

-- name: account_of_call
-- The account of a call. The carriers are named so that the index over (carrier, call) finds it.
SELECT carrier, account FROM attempts WHERE carrier = ANY($1::text[]) AND carrier_call_id = $2 LIMIT 1

-- name: merchants
-- Every merchant that has a tier of its own.
SELECT merchant_id, config FROM router_merchants ORDER BY merchant_id

-- name: remove_merchant
-- Back to standard.
DELETE FROM router_merchants WHERE merchant_id = $1

-- name: set_merchant
-- Set a merchant's tier.
INSERT INTO router_merchants (merchant_id, config) VALUES ($1, $2)
ON CONFLICT (merchant_id) DO UPDATE SET config = excluded.config, changed_at = clock_timestamp()
