-- A new pool; no row if the id is taken.
INSERT INTO pools (id, reseller_id, merchant_id, name, overflow_pool_id, overflow_after_s, region_affinity, agents)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (id) DO NOTHING
RETURNING *
