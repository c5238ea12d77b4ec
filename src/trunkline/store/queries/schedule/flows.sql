-- Which flows have leads to call before the horizon, after the flow at which the last page ended. Jumps from flow to
-- flow in the index (a loose scan): a flow of a million leads costs one step, like a flow of one.
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
