-- name: delete_merchant
-- Remove a merchant. Foreign keys refuse it while anything refers to it.
DELETE FROM merchants WHERE id = $1

-- name: delete_reseller
-- Remove a reseller. Foreign keys refuse it while anything refers to it.
DELETE FROM resellers WHERE id = $1

-- name: get_merchant
-- One merchant, if it belongs to the tenant.
SELECT * FROM merchants
WHERE id = $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR id = $2)

-- name: get_reseller
-- One reseller. A merchant's key sees no reseller, not even its own.
SELECT * FROM resellers
WHERE id = $3 AND ($1::text IS NULL OR id = $1) AND $2::text IS NULL

-- name: insert_merchant
-- A new merchant; no row if the id is taken, by whichever reseller.
INSERT INTO merchants (id, reseller_id, name, default_region, default_pool_id, weight, max_concurrent, agents)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (id) DO NOTHING
RETURNING *

-- name: insert_reseller
-- A new reseller; no row if the id is taken.
INSERT INTO resellers (id, name) VALUES ($1, $2)
ON CONFLICT (id) DO NOTHING
RETURNING *

-- name: list_merchants
-- A tenant's merchants, by id, from after the last one of the page before.
SELECT * FROM merchants
WHERE id > $3
  AND ($1::text IS NULL OR reseller_id = $1)
  AND ($2::text IS NULL OR id = $2)
  AND ($4::text IS NULL OR reseller_id = $4)
ORDER BY id
LIMIT $5

-- name: list_resellers
-- The resellers that a tenant may see, by id, from after the last one of the page before.
SELECT * FROM resellers
WHERE id > $3 AND ($1::text IS NULL OR id = $1) AND $2::text IS NULL
ORDER BY id
LIMIT $4

-- name: update_merchant
-- Change the named fields. Nullable ones have a flag, because NULL is one of their values.
UPDATE merchants SET
    name            = coalesce($2, name),
    weight          = coalesce($3, weight),
    default_region  = CASE WHEN $4 THEN $5 ELSE default_region END,
    default_pool_id = CASE WHEN $6 THEN $7 ELSE default_pool_id END,
    max_concurrent  = CASE WHEN $8 THEN $9 ELSE max_concurrent END,
    agents          = coalesce($10, agents)
WHERE id = $1
RETURNING *

-- name: update_reseller
-- Rename a reseller.
UPDATE resellers SET name = coalesce($2, name)
WHERE id = $1
RETURNING *
