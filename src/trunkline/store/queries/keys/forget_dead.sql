-- Before a tenant is removed: its keys that can no longer be used do not hold it. The audit log remembers them.
DELETE FROM api_keys
WHERE (reseller_id = $1 OR merchant_id = $2) AND (revoked_at IS NOT NULL OR expires_at < now())
