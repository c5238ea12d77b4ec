-- One number that a tenant may use, and how many of its channels calls hold.
SELECT n.*, (SELECT count(*) FROM attempts AS a WHERE a.number_id = n.id AND a.holds_channel) AS channels_held
FROM numbers AS n
WHERE n.id = $3
  AND ($1::text IS NULL OR n.reseller_id IS NULL
       OR (n.reseller_id = $1 AND ($2::text IS NULL OR n.merchant_id IS NULL OR n.merchant_id = $2)))
