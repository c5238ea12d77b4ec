-- Revoke a key. The first revocation stands: a second one does not move its time.
UPDATE api_keys SET revoked_at = coalesce(revoked_at, now())
WHERE id = $1
RETURNING *
