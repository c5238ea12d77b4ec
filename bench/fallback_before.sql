-- The query that the walk of bench/fallback.py replaced, as it was; its parameters are those of a dialer that has set nothing
-- aside. Kept to be measured beside it.
WITH RECURSIVE stops AS MATERIALIZED (
    SELECT scope, subject FROM controls WHERE ends_at IS NULL OR ends_at > clock_timestamp()
), flows AS (
    (SELECT pool_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000') AS campaign, reseller_id
     FROM leads WHERE status = 'BACKLOG' ORDER BY 1, 2, 3 LIMIT 1)
    UNION ALL
    SELECT following.* FROM flows AS f CROSS JOIN LATERAL (
        SELECT l.pool_id, l.merchant_id, coalesce(l.campaign_id, '00000000-0000-0000-0000-000000000000'), l.reseller_id
        FROM leads AS l
        WHERE l.status = 'BACKLOG'
          AND (l.pool_id, l.merchant_id, coalesce(l.campaign_id, '00000000-0000-0000-0000-000000000000'))
              > (f.pool_id, f.merchant_id, f.campaign)
        ORDER BY 1, 2, 3 LIMIT 1) AS following
), open AS (
    SELECT * FROM flows AS f
    WHERE f.merchant_id <> ALL($2::text[])
      AND (f.pool_id, f.merchant_id, f.campaign) NOT IN (SELECT * FROM unnest($4::text[], $5::text[], $6::uuid[]))
      AND NOT EXISTS (SELECT FROM stops AS s
                      WHERE s.scope IN ('kill_switch', 'promoter')
                         OR (s.scope = 'reseller' AND s.subject = f.reseller_id)
                         OR (s.scope = 'merchant' AND s.subject = f.merchant_id)
                         OR (s.scope = 'campaign' AND s.subject = f.merchant_id || '/' || f.campaign))
    LIMIT 1000
), due AS (
    SELECT head.*, f.merchant_id, f.campaign, f.reseller_id,
           row_number() OVER (PARTITION BY head.pool_id ORDER BY head.turn, head.due_at) AS place
    FROM open AS f CROSS JOIN LATERAL (
        SELECT l.id, l.version, l.pool_id, l.due_at, row_number() OVER (ORDER BY l.due_at, l.id) AS turn
        FROM (SELECT * FROM leads AS c
              WHERE c.status = 'BACKLOG' AND c.pool_id = f.pool_id AND c.merchant_id = f.merchant_id
                AND coalesce(c.campaign_id, '00000000-0000-0000-0000-000000000000') = f.campaign
                AND c.due_at <= clock_timestamp() AND c.id <> ALL($3::uuid[])
              ORDER BY c.due_at, c.id LIMIT $1) AS l) AS head
), free AS (
    SELECT n.id AS number_id, n.pool_id, line.no AS channel_no,
           row_number() OVER (PARTITION BY n.pool_id ORDER BY line.no, n.id) AS place
    FROM numbers AS n CROSS JOIN LATERAL generate_series(1, n.max_channels) AS line (no)
    WHERE n.status = 'active' AND n.id <> ALL($7::uuid[])
      AND (n.carrier, n.account) NOT IN (SELECT r.carrier, r.account FROM numbers AS r WHERE r.id = ANY($8::uuid[]))
      AND NOT EXISTS (SELECT FROM stops AS s
                      WHERE (s.scope = 'number' AND s.subject = n.id::text)
                         OR (s.scope = 'carrier' AND s.subject = n.carrier))
      AND NOT EXISTS (
        SELECT FROM attempts AS a WHERE a.number_id = n.id AND a.channel_no = line.no AND a.holds_channel)
)
SELECT d.id, d.version, d.due_at, f.number_id, f.channel_no::int, d.pool_id, d.reseller_id, d.merchant_id, d.campaign,
       (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS granted_ms
FROM due AS d JOIN free AS f ON f.pool_id = d.pool_id AND f.place = d.place
ORDER BY d.turn, d.due_at
LIMIT $1
