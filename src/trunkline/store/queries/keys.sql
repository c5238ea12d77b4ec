-- name: by_hash
-- The owner of a key. The caller checks whether it is revoked or expired, at each use.
SELECT * FROM api_keys WHERE key_hash = $1

-- name: forget_dead
-- Before a tenant is removed: its unusable keys do not prevent it. The audit log has them.
DELETE FROM api_keys
WHERE (reseller_id = $1 OR merchant_id = $2) AND (revoked_at IS NOT NULL OR expires_at < now())

-- name: get
-- One key of the tenant or of those below it.
SELECT * FROM api_keys
WHERE id = $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)

-- name: insert
-- A new key, by its hash alone; no row if the same key exists.
INSERT INTO api_keys ({columns}) VALUES ({values})
ON CONFLICT (key_hash) DO NOTHING
RETURNING *

-- name: list
-- The keys of a tenant and of those below it, oldest first.
SELECT * FROM api_keys
WHERE id > $3::uuid
  AND ($1::text IS NULL OR reseller_id = $1)
  AND ($2::text IS NULL OR merchant_id = $2)
ORDER BY id
LIMIT $4

-- name: revoke
-- Revoke a key. The first revocation counts: a second one does not move its time.
UPDATE api_keys SET revoked_at = coalesce(revoked_at, now())
WHERE id = $1
RETURNING *
