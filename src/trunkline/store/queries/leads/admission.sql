-- What ingest must know of a merchant, in one read: its region, and the pool that was named or is its default.
-- The pool is NULL where there is none that this merchant may use: its own, its reseller's, or the platform's.
SELECT m.id AS merchant_id, m.reseller_id, m.default_region, p.id AS pool_id
FROM merchants m
LEFT JOIN pools p
    ON p.id = coalesce($4, m.default_pool_id)
   AND (p.reseller_id IS NULL
        OR (p.reseller_id = m.reseller_id AND (p.merchant_id IS NULL OR p.merchant_id = m.id)))
WHERE m.id = $3 AND ($1::text IS NULL OR m.reseller_id = $1) AND ($2::text IS NULL OR m.id = $2)
