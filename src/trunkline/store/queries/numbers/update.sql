-- Change what was named. The owner follows the pool. The pace can be emptied, so it carries a flag.
UPDATE numbers n SET
    pool_id      = p.id,
    reseller_id  = p.reseller_id,
    merchant_id  = p.merchant_id,
    carrier      = coalesce($3, n.carrier),
    account      = coalesce($4, n.account),
    max_channels = coalesce($5, n.max_channels),
    status       = coalesce($6, n.status),
    starts_per_s = CASE WHEN $7 THEN $8 ELSE n.starts_per_s END,
    version      = n.version + 1,
    updated_at   = now()
FROM pools p
WHERE n.id = $1 AND p.id = coalesce($2, n.pool_id)
RETURNING n.*, (SELECT count(*) FROM attempts AS a WHERE a.number_id = n.id AND a.holds_channel) AS channels_held
