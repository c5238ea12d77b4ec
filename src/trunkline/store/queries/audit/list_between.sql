-- What was done between two moments, newest first: that time is read whole, by its index, and then narrowed. In the order of
-- ids everything that was done since would be read first.
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
