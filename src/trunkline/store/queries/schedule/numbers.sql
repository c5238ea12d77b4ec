-- Every number with what it may carry now. One that is draining or disabled may not dial.
SELECT n.id, n.pool_id, n.carrier, n.account, CASE WHEN n.status = 'active' THEN n.max_channels ELSE 0 END AS max_channels,
       CASE WHEN p.region_affinity THEN phone_region(n.e164) END AS region
FROM numbers AS n JOIN pools AS p ON p.id = n.pool_id
