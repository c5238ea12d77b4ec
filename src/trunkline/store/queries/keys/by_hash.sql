-- Who a key belongs to. Whether it is revoked or expired is judged by the caller, each time it is used.
SELECT * FROM api_keys WHERE key_hash = $1
