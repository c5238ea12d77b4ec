-- A new secret. The old one goes on signing beside it for a while.
UPDATE webhook_endpoints
SET old_secret_sealed = secret_sealed, old_secret_until = now() + make_interval(secs => $3), secret_sealed = $2,
    updated_at = now()
WHERE id = $1
RETURNING *
