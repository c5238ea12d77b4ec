-- One reseller. A merchant's key sees no reseller, not even its own.
SELECT * FROM resellers
WHERE id = $3 AND ($1::text IS NULL OR id = $1) AND $2::text IS NULL
