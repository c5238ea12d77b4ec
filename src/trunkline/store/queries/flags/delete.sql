-- Back to the default that the code has for it.
DELETE FROM flags WHERE name = $1 RETURNING *
