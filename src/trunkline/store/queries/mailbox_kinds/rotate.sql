-- A new secret. The old one goes on being good beside it for a while.
UPDATE mailbox_kinds
SET old_secret_sealed = secret_sealed, old_secret_until = now() + make_interval(secs => $3), secret_sealed = $2
WHERE kind = $1
RETURNING *
