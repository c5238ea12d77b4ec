-- name: flows
-- Flows with overdue leads, and what could prevent their calls. Flows are found one by one through the index, and at most 100
-- leads are counted of each, so a large backlog costs no more than a small one and hides no other flow.
-- A refusal counts if one of the flow's first three leads had it within two minutes: the match retries a refused flow after a
-- minute at most. A refusal that only says that the grant was out of date, or that the platform failed, does not count.
-- $1 carriers that run the agent themselves  $2 overdue by this many seconds  $3 the most flows that are read
-- $4-$6 only these flows: pools, merchants, campaigns; NULL: all there are
WITH RECURSIVE stops AS MATERIALIZED (
    SELECT scope, subject, ends_at FROM controls WHERE ends_at IS NULL OR ends_at > clock_timestamp()
), walked AS (
    (SELECT pool_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000') AS campaign, reseller_id, 1 AS nth
     FROM leads WHERE status = 'BACKLOG' AND $4::text[] IS NULL
     ORDER BY pool_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000') LIMIT 1)
    UNION ALL
    SELECT next.*, f.nth + 1 FROM walked f CROSS JOIN LATERAL (
        SELECT pool_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000'), reseller_id
        FROM leads
        WHERE status = 'BACKLOG'
          AND (pool_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000'))
              > (f.pool_id, f.merchant_id, f.campaign)
        ORDER BY pool_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000') LIMIT 1
    ) AS next
    WHERE f.nth < $3
), flows AS (
    SELECT pool_id, merchant_id, campaign, reseller_id FROM walked
    UNION ALL
    SELECT named.pool_id, named.merchant_id, coalesce(named.campaign, '00000000-0000-0000-0000-000000000000'), m.reseller_id
    FROM unnest($4::text[], $5::text[], $6::uuid[]) AS named (pool_id, merchant_id, campaign)
    JOIN merchants m ON m.id = named.merchant_id
)
SELECT f.pool_id, f.reseller_id, f.merchant_id, nullif(f.campaign, '00000000-0000-0000-0000-000000000000') AS campaign_id,
       late.leads::float8 AS leads,
       stopped.stops > 0 AS is_stopped, CASE WHEN stopped.endless = 0 THEN stopped.until END AS stopped_until,
       b.merchant_id IS NOT NULL AS is_braked, b.stops_until AS braked_until,
       m.agents = 'ours' AND p.agents = 'ours' AND coalesce(n.needs_agents, true) AS needs_agents,
       n.numbers > 0 AS has_numbers, n.usable > 0 AS has_usable_numbers, n.taking > 0 AS is_taken_by_carrier,
       CASE WHEN n.opens_at > clock_timestamp() THEN n.opens_at END AS cooldown_until, n.free > 0 AS has_free_channel,
       refused.reason AS refused_for, refused.until AS refused_until
FROM flows f
JOIN merchants m ON m.id = f.merchant_id
JOIN pools p ON p.id = f.pool_id
LEFT JOIN no_agent_brakes b ON b.merchant_id = f.merchant_id AND b.stops_until IS NOT NULL
CROSS JOIN LATERAL (
    SELECT count(*) AS stops, count(*) FILTER (WHERE s.ends_at IS NULL) AS endless, max(s.ends_at) AS until
    FROM stops s
    WHERE s.scope IN ('kill_switch', 'promoter')
       OR (s.scope = 'reseller' AND s.subject = f.reseller_id)
       OR (s.scope = 'merchant' AND s.subject = f.merchant_id)
       OR (s.scope = 'campaign' AND s.subject = f.merchant_id || '/' || f.campaign)
) AS stopped
CROSS JOIN LATERAL (
    SELECT count(*) AS leads FROM (
        SELECT FROM leads l
        WHERE l.status = 'BACKLOG' AND l.pool_id = f.pool_id AND l.merchant_id = f.merchant_id
          AND coalesce(l.campaign_id, '00000000-0000-0000-0000-000000000000') = f.campaign
          AND l.due_at < clock_timestamp() - make_interval(secs => $2)
          AND (l.closes_at IS NULL OR l.closes_at > clock_timestamp())
        LIMIT 100) AS counted
) AS late
-- Of its own pool and of its overflow pool. A number that a person stopped is not the same as a missing one.
CROSS JOIN LATERAL (
    SELECT count(*) AS numbers, count(*) FILTER (WHERE NOT each.is_stopped) AS usable,
           count(*) FILTER (WHERE NOT each.is_stopped AND NOT each.is_refused) AS taking,
           count(*) FILTER (WHERE NOT each.is_stopped AND NOT each.is_refused AND each.held < each.max_channels) AS free,
           min(each.opens_at) FILTER (WHERE NOT each.is_stopped AND each.is_refused) AS opens_at,
           NOT bool_or(each.carrier = ANY($1::text[])) AS needs_agents
    FROM (SELECT n.carrier, n.max_channels,
                 EXISTS (SELECT FROM stops s WHERE (s.scope = 'number' AND s.subject = n.id::text)
                                                OR (s.scope = 'carrier' AND s.subject = n.carrier)) AS is_stopped,
                 cooling.opens_at IS NOT NULL AS is_refused, cooling.opens_at,
                 (SELECT count(*) FROM attempts a WHERE a.number_id = n.id AND a.holds_channel) AS held
          FROM numbers n
          -- A number dials again when its own cooldown and its account's both allow a probe.
          CROSS JOIN LATERAL (
              SELECT max(c.opens_at) AS opens_at FROM cooldowns c
              WHERE c.carrier = n.carrier AND c.account = n.account AND c.refused_at IS NOT NULL
                AND (c.scope = 'account' OR (c.scope = 'number' AND c.subject = n.id::text))) AS cooling
          WHERE n.pool_id IN (p.id, p.overflow_pool_id) AND n.status = 'active' AND n.max_channels > 0
          LIMIT 1000) AS each
) AS n
LEFT JOIN LATERAL (
    SELECT d.reason, d.until
    FROM (SELECT l.id FROM leads l
          WHERE l.status = 'BACKLOG' AND l.pool_id = f.pool_id AND l.merchant_id = f.merchant_id
            AND coalesce(l.campaign_id, '00000000-0000-0000-0000-000000000000') = f.campaign
            AND l.due_at < clock_timestamp() - make_interval(secs => $2)
          ORDER BY l.priority, l.due_at LIMIT 3) AS head
    JOIN decisions d ON d.lead_id = head.id
    WHERE d.last_at > clock_timestamp() - interval '2 minutes'
      AND d.reason NOT IN ('lead', 'not_due', 'stale_grant', 'contended', 'error')
    ORDER BY d.last_at DESC LIMIT 1
) AS refused ON true
WHERE late.leads > 0
