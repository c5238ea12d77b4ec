-- Change what was named. The owner follows the pool.
UPDATE numbers n SET
    pool_id      = p.id,
    reseller_id  = p.reseller_id,
    merchant_id  = p.merchant_id,
    carrier      = coalesce($3, n.carrier),
    account      = coalesce($4, n.account),
    max_channels = coalesce($5, n.max_channels),
    status       = coalesce($6, n.status),
    version      = n.version + 1,
    updated_at   = now()
FROM pools p
WHERE n.id = $1 AND p.id = coalesce($2, n.pool_id)
RETURNING n.*
