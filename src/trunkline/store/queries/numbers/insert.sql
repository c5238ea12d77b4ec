-- A new number. It belongs to whom its pool belongs: every lead of a pool may use every number of it.
INSERT INTO numbers (id, e164, pool_id, reseller_id, merchant_id, carrier, account, max_channels, starts_per_s, status)
SELECT $1, $2, p.id, p.reseller_id, p.merchant_id, $4, $5, $6, $7, $8
FROM pools p
WHERE p.id = $3
ON CONFLICT (e164) DO NOTHING
RETURNING *, 0::bigint AS channels_held
