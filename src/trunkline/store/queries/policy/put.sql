-- Replace a layer. Versions only grow, also past a removal: whoever remembers one must not take the new one for it.
INSERT INTO policies AS p (scope, subject, policy, version, reseller_id, merchant_id, updated_by)
VALUES ($1, $2, $3, extract(epoch FROM clock_timestamp())::int, $4, $5, $6)
ON CONFLICT (scope, subject) DO UPDATE
SET policy = EXCLUDED.policy, version = greatest(p.version + 1, EXCLUDED.version), updated_at = clock_timestamp(),
    updated_by = EXCLUDED.updated_by
RETURNING p.*
