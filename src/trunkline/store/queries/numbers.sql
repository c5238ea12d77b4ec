-- name: delete
-- Remove a number, and its inbound policy. The caller has locked it and found no call on it.
WITH forgotten AS (DELETE FROM inbound_policies WHERE number_id = $1)
DELETE FROM numbers WHERE id = $1

-- name: delete_pool
-- Remove a pool. Foreign keys refuse it while a number, a lead or a merchant refers to it.
DELETE FROM pools WHERE id = $1

-- name: get
-- One number that a tenant may use, and how many of its channels calls hold.
SELECT n.*, (SELECT count(*) FROM attempts AS a WHERE a.number_id = n.id AND a.holds_channel) AS channels_held
FROM numbers AS n
WHERE n.id = $3
  AND ($1::text IS NULL OR n.reseller_id IS NULL
       OR (n.reseller_id = $1 AND ($2::text IS NULL OR n.merchant_id IS NULL OR n.merchant_id = $2)))

-- name: get_pool
-- One pool that a tenant may use: its own, one of those below it, its reseller's, or the platform's.
SELECT * FROM pools
WHERE id = $3
  AND ($1::text IS NULL OR reseller_id IS NULL
       OR (reseller_id = $1 AND ($2::text IS NULL OR merchant_id IS NULL OR merchant_id = $2)))

-- name: held_channels
-- The channels of a number that a call holds or may still hold.
SELECT count(*) FROM attempts WHERE number_id = $1 AND holds_channel

-- name: insert
-- A new number. Its owner is its pool's: every lead of a pool may use every number of it.
INSERT INTO numbers (id, e164, pool_id, reseller_id, merchant_id, carrier, account, max_channels, starts_per_s, status)
SELECT $1, $2, p.id, p.reseller_id, p.merchant_id, $4, $5, $6, $7, $8
FROM pools p
WHERE p.id = $3
ON CONFLICT (e164) DO NOTHING
RETURNING *, 0::bigint AS channels_held

-- name: insert_pool
-- A new pool; no row if the id is taken.
INSERT INTO pools (id, reseller_id, merchant_id, name, overflow_pool_id, overflow_after_s, region_affinity, agents)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (id) DO NOTHING
RETURNING *

-- name: list
-- The numbers that a tenant may use, oldest first, and how many of their channels calls hold.
SELECT n.*, (SELECT count(*) FROM attempts AS a WHERE a.number_id = n.id AND a.holds_channel) AS channels_held
FROM numbers AS n
WHERE n.id > $3::uuid
  AND ($1::text IS NULL OR n.reseller_id IS NULL
       OR (n.reseller_id = $1 AND ($2::text IS NULL OR n.merchant_id IS NULL OR n.merchant_id = $2)))
  AND ($4::text IS NULL OR n.pool_id = $4)
  AND ($6::text IS NULL OR n.e164 = $6)
ORDER BY n.id
LIMIT $5

-- name: list_pools
-- The pools that a tenant may use, by id, from after the last one of the page before.
SELECT * FROM pools
WHERE id > $3
  AND ($1::text IS NULL OR reseller_id IS NULL
       OR (reseller_id = $1 AND ($2::text IS NULL OR merchant_id IS NULL OR merchant_id = $2)))
ORDER BY id
LIMIT $4

-- name: lock
-- Lock a number against dialers, which lock it FOR SHARE in their intent: after this, its calls can be counted.
SELECT id FROM numbers WHERE id = $1 FOR UPDATE

-- name: update
-- Change the named fields. The owner follows the pool. The pace is nullable, so it has a flag.
UPDATE numbers n SET
    pool_id      = p.id,
    reseller_id  = p.reseller_id,
    merchant_id  = p.merchant_id,
    carrier      = coalesce($3, n.carrier),
    account      = coalesce($4, n.account),
    max_channels = coalesce($5, n.max_channels),
    status       = coalesce($6, n.status),
    starts_per_s = CASE WHEN $7 THEN $8 ELSE n.starts_per_s END,
    version      = n.version + 1,
    updated_at   = now()
FROM pools p
WHERE n.id = $1 AND p.id = coalesce($2, n.pool_id)
RETURNING n.*, (SELECT count(*) FROM attempts AS a WHERE a.number_id = n.id AND a.holds_channel) AS channels_held

-- name: update_pool
-- Change the named fields. Its owner never changes: leads of other tenants would lose it, or gain it.
UPDATE pools
SET name             = coalesce($2, name),
    overflow_pool_id = CASE WHEN $3 THEN $4 ELSE overflow_pool_id END,
    overflow_after_s = CASE WHEN $3 THEN $5 ELSE overflow_after_s END,
    region_affinity  = coalesce($6, region_affinity),
    agents           = coalesce($7, agents)
WHERE id = $1
RETURNING *
