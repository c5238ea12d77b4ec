-- Leads that should have been called: overdue by 10 s, not stopped by anybody, with a free channel in their pool. At most
-- 100 are counted per flow, and flows are found one by one through the index, so a large pile costs no more than a small
-- one and hides nobody behind it. Beside them, how many of them need an agent of ours.
-- $1 carriers that run the agent themselves
WITH RECURSIVE stops AS MATERIALIZED (
    SELECT scope, subject FROM controls WHERE ends_at IS NULL OR ends_at > clock_timestamp()
), flows AS (
    (SELECT pool_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000') AS campaign, reseller_id
     FROM leads WHERE status = 'BACKLOG'
     ORDER BY pool_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000') LIMIT 1)
    UNION ALL
    SELECT next.* FROM flows f CROSS JOIN LATERAL (
        SELECT pool_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000'), reseller_id
        FROM leads
        WHERE status = 'BACKLOG'
          AND (pool_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000'))
              > (f.pool_id, f.merchant_id, f.campaign)
        ORDER BY pool_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000') LIMIT 1
    ) AS next
)
SELECT coalesce(sum(late.leads), 0)::float8 AS leads,
       coalesce(sum(late.leads) FILTER (
           WHERE (SELECT m.agents FROM merchants m WHERE m.id = f.merchant_id) = 'ours'
             AND (SELECT p.agents FROM pools p WHERE p.id = f.pool_id) = 'ours'
             AND NOT EXISTS (SELECT FROM numbers n
                             WHERE n.pool_id = f.pool_id AND n.status = 'active' AND n.carrier = ANY($1::text[]))), 0)::float8
           AS needing_agents
FROM flows f CROSS JOIN LATERAL (
    SELECT count(*) AS leads FROM (
        SELECT FROM leads l
        WHERE l.status = 'BACKLOG' AND l.pool_id = f.pool_id AND l.merchant_id = f.merchant_id
          AND coalesce(l.campaign_id, '00000000-0000-0000-0000-000000000000') = f.campaign
          AND l.due_at < clock_timestamp() - interval '10 seconds'
          AND (l.closes_at IS NULL OR l.closes_at > clock_timestamp())
        LIMIT 100) AS counted
) AS late
WHERE NOT EXISTS (
        SELECT FROM stops s
        WHERE s.scope IN ('kill_switch', 'promoter')
           OR (s.scope = 'reseller' AND s.subject = f.reseller_id)
           OR (s.scope = 'merchant' AND s.subject = f.merchant_id)
           OR (s.scope = 'campaign' AND s.subject = f.merchant_id || '/' || f.campaign))
  AND NOT EXISTS (SELECT FROM no_agent_brakes b WHERE b.merchant_id = f.merchant_id AND b.stops_until IS NOT NULL)
  AND EXISTS (
        SELECT FROM numbers n
        WHERE n.pool_id = f.pool_id AND n.status = 'active'
          AND NOT EXISTS (
                SELECT FROM stops s
                WHERE (s.scope = 'number' AND s.subject = n.id::text) OR (s.scope = 'carrier' AND s.subject = n.carrier))
          AND (SELECT count(*) FROM attempts a WHERE a.number_id = n.id AND a.holds_channel) < n.max_channels)
