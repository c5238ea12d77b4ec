-- name: delete
-- Remove a number, and its inbound policy. The caller has locked it and found no call on it.
WITH forgotten AS (DELETE FROM inbound_policies WHERE number_id = $1)
DELETE FROM numbers WHERE id = $1

-- name: delete_pool
-- Remove a pool. Foreign keys refuse it while a number, a lead or a merchant refers to it.
DELETE FROM pools WHERE id = $1

-- name: get
-- One number that a tenant may use, and how many of its channels calls hold.
SELECT n.*, n.pool_id AS pool,
       (SELECT count(*) FROM attempts AS a WHERE a.number_id = n.id AND a.holds_channel) AS channels_held
FROM numbers AS n
WHERE n.id = $3
  AND ($1::text IS NULL OR n.reseller_id IS NULL
       OR (n.reseller_id = $1 AND ($2::text IS NULL OR n.merchant_id IS NULL OR n.merchant_id = $2)))

-- name: get_pool
-- One pool that a tenant may use: its own, one of those below it, its reseller's, or the platform's.
SELECT *, overflow_pool_id AS overflow_pool FROM pools
WHERE id = $3
  AND ($1::text IS NULL OR reseller_id IS NULL
       OR (reseller_id = $1 AND ($2::text IS NULL OR merchant_id IS NULL OR merchant_id = $2)))

-- name: held_channels
-- The channels of a number that a call holds or may still hold.
SELECT count(*) FROM attempts WHERE number_id = $1 AND holds_channel

-- name: insert
-- A new number; no row if it is known. Its owner is its pool's: every lead of a pool may use every number of it.
INSERT INTO numbers ({columns}) VALUES ({values})
ON CONFLICT (e164) DO NOTHING
RETURNING *, pool_id AS pool, 0::bigint AS channels_held

-- name: insert_pool
-- A new pool; no row if the id is taken.
INSERT INTO pools ({columns}) VALUES ({values})
ON CONFLICT (id) DO NOTHING
RETURNING *, overflow_pool_id AS overflow_pool

-- name: list
-- The numbers that a tenant may use, oldest first, and how many of their channels calls hold.
SELECT n.*, n.pool_id AS pool,
       (SELECT count(*) FROM attempts AS a WHERE a.number_id = n.id AND a.holds_channel) AS channels_held
FROM numbers AS n
WHERE n.id > $3::uuid
  AND ($1::text IS NULL OR n.reseller_id IS NULL
       OR (n.reseller_id = $1 AND ($2::text IS NULL OR n.merchant_id IS NULL OR n.merchant_id = $2)))
  AND ($5::text IS NULL OR n.pool_id = $5)
  AND ($6::text IS NULL OR n.e164 = $6)
ORDER BY n.id
LIMIT $4

-- name: list_pools
-- The pools that a tenant may use, by id, from after the last one of the page before.
SELECT *, overflow_pool_id AS overflow_pool FROM pools
WHERE id > $3
  AND ($1::text IS NULL OR reseller_id IS NULL
       OR (reseller_id = $1 AND ($2::text IS NULL OR merchant_id IS NULL OR merchant_id = $2)))
ORDER BY id
LIMIT $4

-- name: lock
-- Lock a number against dialers, which lock it FOR SHARE in their intent: after this, its calls can be counted.
SELECT id FROM numbers WHERE id = $1 FOR UPDATE

-- name: update
-- Change the named fields. With another pool the caller names its owner too.
UPDATE numbers AS n SET version = n.version + 1, updated_at = now(){changes}
WHERE n.id = $1
RETURNING n.*, n.pool_id AS pool,
          (SELECT count(*) FROM attempts AS a WHERE a.number_id = n.id AND a.holds_channel) AS channels_held

-- name: update_pool
-- Change the named fields. Its owner never changes: leads of other tenants would lose it, or gain it.
UPDATE pools SET id = id{changes}
WHERE id = $1
RETURNING *, overflow_pool_id AS overflow_pool
