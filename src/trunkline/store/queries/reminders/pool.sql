-- The pool that a merchant's reminders ring from: the one that is named, or the nearest of those whose numbers are all at
-- the carrier: its default, its own, its reseller's, the platform's.
SELECT p.id
FROM merchants AS m
JOIN pools AS p ON p.reseller_id IS NULL
    OR (p.reseller_id = m.reseller_id AND (p.merchant_id IS NULL OR p.merchant_id = m.id))
WHERE m.id = $1 AND ($2::text IS NULL OR p.id = $2)
  AND ($3::text IS NULL
       OR (SELECT bool_and(n.carrier = $3) FROM numbers AS n WHERE n.pool_id = p.id AND n.status = 'active'))
ORDER BY p.id = m.default_pool_id DESC NULLS LAST, p.merchant_id IS NULL, p.reseller_id IS NULL, p.id
LIMIT 1
