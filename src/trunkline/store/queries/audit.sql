-- name: insert
-- An entry, in the transaction of the change.
INSERT INTO audit_log (actor, action, subject, reason, details, reseller_id, merchant_id)
VALUES ($1, $2, $3, $4, $5, $6, $7)

-- name: list
-- Newest first: what a tenant may read. Filters are joined by "and". The area of an action, its first word, is a column of
-- its own: there is an index by it.
SELECT * FROM audit_log
WHERE id < $3
  AND ($1::text IS NULL OR reseller_id = $1)
  AND ($2::text IS NULL OR merchant_id = $2)
  AND ($4::text IS NULL OR actor = $4)
  AND ($5::text IS NULL OR split_part(action, '.', 1) = split_part($5, '.', 1))
  AND ($5::text IS NULL OR action = $5 OR starts_with(action, $5 || '.'))
  AND ($6::text IS NULL OR subject = $6)
  AND ($7::timestamptz IS NULL OR at >= $7)
  AND ($8::timestamptz IS NULL OR at < $8)
ORDER BY id DESC
LIMIT $9

-- name: list_between
-- Entries between two times, newest first: that range is read whole, by its index, and then filtered. In the order of ids all
-- later entries would be read first.
WITH span AS MATERIALIZED (
    SELECT * FROM audit_log WHERE at >= $7 AND at < $8
)
SELECT * FROM span
WHERE id < $3
  AND ($1::text IS NULL OR reseller_id = $1)
  AND ($2::text IS NULL OR merchant_id = $2)
  AND ($4::text IS NULL OR actor = $4)
  AND ($5::text IS NULL OR action = $5 OR starts_with(action, $5 || '.'))
  AND ($6::text IS NULL OR subject = $6)
ORDER BY id DESC
LIMIT $9
