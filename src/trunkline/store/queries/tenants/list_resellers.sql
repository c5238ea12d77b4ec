-- The resellers that a tenant may see, by id, from after the last one of the page before.
SELECT * FROM resellers
WHERE id > $3 AND ($1::text IS NULL OR id = $1) AND $2::text IS NULL
ORDER BY id
LIMIT $4
