-- The numbers that a tenant may use, oldest first, and how many of their channels calls hold.
SELECT n.*, (SELECT count(*) FROM attempts AS a WHERE a.number_id = n.id AND a.holds_channel) AS channels_held
FROM numbers AS n
WHERE n.id > $3::uuid
  AND ($1::text IS NULL OR n.reseller_id IS NULL
       OR (n.reseller_id = $1 AND ($2::text IS NULL OR n.merchant_id IS NULL OR n.merchant_id = $2)))
  AND ($4::text IS NULL OR n.pool_id = $4)
  AND ($6::text IS NULL OR n.e164 = $6)
ORDER BY n.id
LIMIT $5
