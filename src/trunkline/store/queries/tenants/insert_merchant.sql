-- A new merchant; no row if the id is taken, by whichever reseller.
INSERT INTO merchants (id, reseller_id, name, default_region, default_pool_id, weight, max_concurrent, agents)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (id) DO NOTHING
RETURNING *
