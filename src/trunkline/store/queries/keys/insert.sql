-- A new key, by its hash alone; no row if this very key is known already.
INSERT INTO api_keys (id, key_hash, hint, name, scopes, reseller_id, merchant_id, created_by, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (key_hash) DO NOTHING
RETURNING *
