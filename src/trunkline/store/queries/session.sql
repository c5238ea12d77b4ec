-- name: now
-- Postgres's clock at the beginning of the transaction.
SELECT now()

-- name: use_path
-- Until the end of the transaction: behind a pooler other clients share the session.
SELECT set_config('search_path', $1, true)

-- name: patience
-- How long the statements of this transaction wait for a lock, in milliseconds.
SELECT set_config('lock_timeout', $1::text, true)
