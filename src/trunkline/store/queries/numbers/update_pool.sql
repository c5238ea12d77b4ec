-- Rename a pool. Its owner never changes: leads of other tenants would lose it, or gain it.
UPDATE pools SET name = coalesce($2, name)
WHERE id = $1
RETURNING *
