-- A new pool; no row if the id is taken.
INSERT INTO pools (id, reseller_id, merchant_id, name) VALUES ($1, $2, $3, $4)
ON CONFLICT (id) DO NOTHING
RETURNING *
