-- name: delete_merchant
-- Remove a merchant. Foreign keys refuse it while anything refers to it.
DELETE FROM merchants WHERE id = $1

-- name: delete_reseller
-- Remove a reseller. Foreign keys refuse it while anything refers to it.
DELETE FROM resellers WHERE id = $1

-- name: get_merchant
-- One merchant, if it belongs to the tenant.
SELECT *, default_pool_id AS default_pool FROM merchants
WHERE id = $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR id = $2)

-- name: get_reseller
-- One reseller. A merchant's key sees no reseller, not even its own.
SELECT * FROM resellers
WHERE id = $3 AND ($1::text IS NULL OR id = $1) AND $2::text IS NULL

-- name: insert_merchant
-- A new merchant; no row if the id is taken, by whichever reseller.
INSERT INTO merchants ({columns}) VALUES ({values})
ON CONFLICT (id) DO NOTHING
RETURNING *, default_pool_id AS default_pool

-- name: insert_reseller
-- A new reseller; no row if the id is taken.
INSERT INTO resellers ({columns}) VALUES ({values})
ON CONFLICT (id) DO NOTHING
RETURNING *

-- name: list_merchants
-- A tenant's merchants, by id, from after the last one of the page before.
SELECT *, default_pool_id AS default_pool FROM merchants
WHERE id > $3
  AND ($1::text IS NULL OR reseller_id = $1)
  AND ($2::text IS NULL OR id = $2)
  AND ($5::text IS NULL OR reseller_id = $5)
ORDER BY id
LIMIT $4

-- name: list_resellers
-- The resellers that a tenant may see, by id, from after the last one of the page before.
SELECT * FROM resellers
WHERE id > $3 AND ($1::text IS NULL OR id = $1) AND $2::text IS NULL
ORDER BY id
LIMIT $4

-- name: update_merchant
-- Change the named fields, or none: then its own id is all that is set.
UPDATE merchants SET id = id{changes}
WHERE id = $1
RETURNING *, default_pool_id AS default_pool

-- name: update_reseller
-- Rename a reseller.
UPDATE resellers SET id = id{changes}
WHERE id = $1
RETURNING *
