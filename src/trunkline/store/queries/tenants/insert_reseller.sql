-- A new reseller; no row if the id is taken.
INSERT INTO resellers (id, name) VALUES ($1, $2)
ON CONFLICT (id) DO NOTHING
RETURNING *
