-- What may sign an append to this kind now.
SELECT secret_sealed, CASE WHEN old_secret_until > now() THEN old_secret_sealed END AS old_secret_sealed
FROM mailbox_kinds WHERE kind = $1
