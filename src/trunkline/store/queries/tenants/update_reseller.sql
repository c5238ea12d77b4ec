-- Rename a reseller.
UPDATE resellers SET name = coalesce($2, name)
WHERE id = $1
RETURNING *
