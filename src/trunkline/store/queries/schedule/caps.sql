-- The hard limits of merchants and of campaigns: how many calls each may have at once. As the scripts name them.
SELECT 'm/' || id AS subject, max_concurrent AS cap FROM merchants WHERE max_concurrent IS NOT NULL
UNION ALL
SELECT 'c/' || subject, (policy ->> 'max_concurrent')::int FROM policies
WHERE scope = 'campaign' AND jsonb_typeof(policy -> 'max_concurrent') = 'number'
