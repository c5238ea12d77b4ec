-- What ingest must know of merchants, in one read: their region, the pool that was named or is the default, and every
-- layer of calling policy that has a say. The pool is NULL where there is none that this merchant may use: its own, its
-- reseller's, or the platform's.
-- $1, $2 the tenant   $3 merchants   $4 pools or NULL   $5 campaigns or NULL
SELECT asked.nth, m.id AS merchant_id, m.reseller_id, m.default_region, p.id AS pool_id, clock_timestamp() AS now,
       ARRAY[(SELECT policy::text FROM policies WHERE scope = 'platform' AND subject = ''),
             (SELECT policy::text FROM policies WHERE scope = 'reseller' AND subject = m.reseller_id),
             (SELECT policy::text FROM policies WHERE scope = 'merchant' AND subject = m.id),
             (SELECT policy::text FROM policies WHERE scope = 'campaign' AND subject = m.id || '/' || asked.campaign_id)
       ] AS policy
FROM unnest($3::text[], $4::text[], $5::uuid[]) WITH ORDINALITY AS asked (merchant_id, pool_id, campaign_id, nth)
JOIN merchants AS m ON m.id = asked.merchant_id
LEFT JOIN pools AS p
    ON p.id = coalesce(asked.pool_id, m.default_pool_id)
   AND (p.reseller_id IS NULL
        OR (p.reseller_id = m.reseller_id AND (p.merchant_id IS NULL OR p.merchant_id = m.id)))
WHERE ($1::text IS NULL OR m.reseller_id = $1) AND ($2::text IS NULL OR m.id = $2)
