-- name: active
-- Every account that is in use, for the directory of a process.
SELECT * FROM carrier_accounts WHERE status = 'active' ORDER BY id

-- name: delete
-- Remove an account that no number uses.
DELETE FROM carrier_accounts AS a
WHERE a.id = $1 AND NOT EXISTS (SELECT FROM numbers AS n WHERE n.carrier = a.carrier AND n.account = a.name)
RETURNING a.id

-- name: get
-- One account.
SELECT * FROM carrier_accounts WHERE id = $1

-- name: insert
-- A new account; no row if its name is taken.
INSERT INTO carrier_accounts (id, carrier, name, credentials, base_url, starts_per_s, status)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (carrier, name) DO NOTHING
RETURNING *

-- name: list
-- Accounts in the order in which they were added.
SELECT * FROM carrier_accounts
WHERE id > $1::uuid AND ($2::text IS NULL OR carrier = $2)
ORDER BY id
LIMIT $3

-- name: lock
-- One account, locked against other changes: a change of some credentials builds on the stored ones.
SELECT * FROM carrier_accounts WHERE id = $1 FOR UPDATE

-- name: reseal
-- The same credentials under a newer key. A concurrent change of them wins.
UPDATE carrier_accounts SET credentials = $3 WHERE id = $1 AND credentials = $2

-- name: update
-- Change the named fields. The flags say whether a nullable value was given.
UPDATE carrier_accounts SET
    credentials  = coalesce($2, credentials),
    base_url     = CASE WHEN $3 THEN $4 ELSE base_url END,
    starts_per_s = CASE WHEN $5 THEN $6 ELSE starts_per_s END,
    status       = coalesce($7, status),
    version      = version + 1,
    updated_at   = clock_timestamp()
WHERE id = $1
RETURNING *
