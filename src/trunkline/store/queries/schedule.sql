-- name: caps
-- The hard limits of concurrent calls of merchants and of campaigns, as the scripts name them.
SELECT 'm/' || id AS subject, max_concurrent AS cap FROM merchants WHERE max_concurrent IS NOT NULL
UNION ALL
SELECT 'c/' || subject, (policy ->> 'max_concurrent')::int FROM policies
WHERE scope = 'campaign' AND jsonb_typeof(policy -> 'max_concurrent') = 'number'

-- name: clock
-- Postgres's time. Postgres decides what is due; every other clock is compared with this one.
SELECT extract(epoch FROM clock_timestamp())::float8

-- name: flows
-- The flows with leads to call before the horizon, after the flow at which the last page ended. Jumps from flow to flow in the
-- index (a loose scan): a flow of a million leads costs one step, like a flow of one.
WITH RECURSIVE flows AS (
    (SELECT pool_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000') AS campaign, reseller_id
     FROM leads
     WHERE status = 'BACKLOG'
       AND (pool_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000')) > ($1, $2, $3::uuid)
     ORDER BY 1, 2, 3 LIMIT 1)
    UNION ALL
    SELECT following.* FROM flows AS f CROSS JOIN LATERAL (
        SELECT l.pool_id, l.merchant_id, coalesce(l.campaign_id, '00000000-0000-0000-0000-000000000000'), l.reseller_id
        FROM leads AS l
        WHERE l.status = 'BACKLOG'
          AND (l.pool_id, l.merchant_id, coalesce(l.campaign_id, '00000000-0000-0000-0000-000000000000'))
              > (f.pool_id, f.merchant_id, f.campaign)
        ORDER BY 1, 2, 3 LIMIT 1) AS following
)
SELECT pool_id, reseller_id, merchant_id, campaign FROM flows LIMIT $4

-- name: heads
-- The next leads of one flow, in the order in which they are called: overdue ones by priority and due time, then those that
-- are due before the horizon by due time. Overdue leads are read priority by priority, so that each step is one index range.
WITH RECURSIVE priorities AS (
    (SELECT min(priority) AS priority FROM leads
     WHERE status = 'BACKLOG' AND pool_id = $1 AND merchant_id = $2
       AND coalesce(campaign_id, '00000000-0000-0000-0000-000000000000') = $3::uuid)
    UNION ALL
    SELECT (SELECT min(l.priority) FROM leads AS l
            WHERE l.status = 'BACKLOG' AND l.pool_id = $1 AND l.merchant_id = $2
              AND coalesce(l.campaign_id, '00000000-0000-0000-0000-000000000000') = $3::uuid
              AND l.priority > p.priority)
    FROM priorities AS p WHERE p.priority IS NOT NULL
), overdue AS (
    SELECT lead.* FROM priorities AS p CROSS JOIN LATERAL (
        SELECT l.id, l.version, l.priority, l.due_at, l.closes_at, l.phone
        FROM leads AS l
        WHERE l.status = 'BACKLOG' AND l.pool_id = $1 AND l.merchant_id = $2
          AND coalesce(l.campaign_id, '00000000-0000-0000-0000-000000000000') = $3::uuid
          AND l.priority = p.priority AND l.due_at <= clock_timestamp()
        ORDER BY l.due_at, l.id LIMIT $5) AS lead
    WHERE p.priority IS NOT NULL
    LIMIT $5
), upcoming AS (
    SELECT l.id, l.version, l.priority, l.due_at, l.closes_at, l.phone
    FROM leads AS l
    WHERE l.status = 'BACKLOG' AND l.pool_id = $1 AND l.merchant_id = $2
      AND coalesce(l.campaign_id, '00000000-0000-0000-0000-000000000000') = $3::uuid
      AND l.due_at > clock_timestamp() AND l.due_at < clock_timestamp() + make_interval(secs => $4)
    ORDER BY l.due_at, l.id LIMIT $5
)
SELECT h.id, h.version, h.priority, h.due_at, h.closes_at, p.overflow_pool_id, p.overflow_after_s,
       CASE WHEN p.region_affinity THEN phone_region(h.phone) END AS region
FROM (SELECT * FROM overdue UNION ALL SELECT * FROM upcoming) AS h CROSS JOIN pools AS p
WHERE p.id = $1
LIMIT $5

-- name: holders
-- The holders of channels, each with its flow.
SELECT a.id, a.number_id, a.channel_no, a.lead_id, l.pool_id, l.reseller_id, l.merchant_id, l.campaign_id
FROM attempts AS a LEFT JOIN leads AS l ON l.id = a.lead_id
WHERE a.holds_channel

-- name: known_attempts
-- Which of these holders are attempts. A grant without an intent is none.
SELECT id FROM attempts WHERE id = ANY($1::uuid[])

-- name: next_epoch
-- A number that no rebuild has had before.
SELECT nextval('bus_epochs')

-- name: numbers
-- Every number with its present capacity. One that is draining or disabled may not dial.
SELECT n.id, n.pool_id, n.carrier, n.account, CASE WHEN n.status = 'active' THEN n.max_channels ELSE 0 END AS max_channels,
       CASE WHEN p.region_affinity THEN phone_region(n.e164) END AS region
FROM numbers AS n JOIN pools AS p ON p.id = n.pool_id

-- name: overdialled
-- Whose leads may be dialled without a reserved agent, as the scripts name them: merchants and campaigns for which the layers
-- of policy together allow a share of abandoned calls. The least of the layers counts. A hint for the match, which does not
-- hold them back for want of an agent; the intent decides.
WITH stated AS MATERIALIZED (
    SELECT p.scope, p.subject, (p.policy ->> 'abandon_max')::float8 AS most
    FROM policies AS p WHERE jsonb_typeof(p.policy -> 'abandon_max') = 'number'
), merchant AS (
    SELECT m.id, least(r.most, o.most, b.most) AS most
    FROM merchants AS m
    LEFT JOIN stated AS r ON r.scope = 'platform'
    LEFT JOIN stated AS o ON o.scope = 'reseller' AND o.subject = m.reseller_id
    LEFT JOIN stated AS b ON b.scope = 'merchant' AND b.subject = m.id
    WHERE EXISTS (SELECT FROM stated)
)
SELECT 'm/' || m.id AS subject FROM merchant AS m WHERE m.most > 0
UNION ALL
SELECT 'c/' || s.subject FROM stated AS s
JOIN merchant AS m ON m.id = split_part(s.subject, '/', 1)
WHERE s.scope = 'campaign' AND least(s.most, m.most) > 0

-- name: backlog_counts
-- How many leads wait, by the statistics of their index (counting a million takes 100 ms), and how many are being called.
SELECT (SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = 'leads_backlog_by_due'::regclass) AS backlog,
       (SELECT count(*) FROM leads WHERE status = 'PROCESSING') AS processing

-- name: entries
-- Which of these leads are still to be called, as entries of the schedule.
SELECT l.id, l.version, l.priority, l.due_at, l.closes_at, l.pool_id, l.reseller_id, l.merchant_id, l.campaign_id,
       p.overflow_pool_id, p.overflow_after_s, CASE WHEN p.region_affinity THEN phone_region(l.phone) END AS region
FROM leads AS l JOIN pools AS p ON p.id = l.pool_id
WHERE l.id = ANY($1::uuid[]) AND l.status = 'BACKLOG'

-- name: ungated
-- Whose agents are external: the match does not hold their leads back for want of one of ours. As the scripts name them.
SELECT 'm/' || id AS subject FROM merchants WHERE agents = 'elsewhere'
UNION ALL
SELECT 'p/' || id FROM pools WHERE agents = 'elsewhere'

-- name: waiting_merchants
-- Merchants with leads to call, and their resellers. One index lookup per merchant.
SELECT m.reseller_id, m.id
FROM merchants AS m
WHERE EXISTS (SELECT FROM leads AS l WHERE l.merchant_id = m.id AND l.status = 'BACKLOG')

-- name: weights
-- The shares of merchants that differ from one.
SELECT id, weight FROM merchants WHERE weight <> 1
