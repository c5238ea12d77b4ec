-- name: active
-- Every account that is in use, for the directory of a process.
SELECT * FROM carrier_accounts WHERE status = 'active' ORDER BY id

-- name: delete
-- Remove an account that no number uses.
DELETE FROM carrier_accounts AS a
WHERE a.id = $1 AND NOT EXISTS (SELECT FROM numbers AS n WHERE n.carrier = a.carrier AND n.account = a.name)
RETURNING a.id

-- name: get
-- One account, for the platform alone.
SELECT * FROM carrier_accounts WHERE id = $3 AND $1::text IS NULL AND $2::text IS NULL

-- name: insert
-- A new account; no row if its name is taken.
INSERT INTO carrier_accounts ({columns}) VALUES ({values})
ON CONFLICT (carrier, name) DO NOTHING
RETURNING *

-- name: list
-- Accounts in the order in which they were added, for the platform alone.
SELECT * FROM carrier_accounts
WHERE id > $3::uuid AND $1::text IS NULL AND $2::text IS NULL AND ($5::text IS NULL OR carrier = $5)
ORDER BY id
LIMIT $4

-- name: lock
-- One account, locked against other changes: a change of some credentials builds on the stored ones.
SELECT * FROM carrier_accounts WHERE id = $1 FOR UPDATE

-- name: reseal
-- The same credentials under a newer key. A concurrent change of them wins.
UPDATE carrier_accounts SET credentials = $3 WHERE id = $1 AND credentials = $2

-- name: update
-- Change the named fields.
UPDATE carrier_accounts SET version = version + 1, updated_at = clock_timestamp(){changes}
WHERE id = $1
RETURNING *
