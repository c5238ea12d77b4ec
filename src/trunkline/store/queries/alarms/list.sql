-- Newest first.
SELECT * FROM alarms
WHERE id < $3
  AND ($1::text IS NULL OR reseller_id = $1)
  AND ($2::text IS NULL OR merchant_id = $2)
  AND ($4::boolean IS NULL OR (cleared_at IS NULL) = $4)
  AND ($5::text IS NULL OR name = $5)
  AND ($6::text IS NULL OR severity = $6)
ORDER BY id DESC
LIMIT $7
