-- The flows that have leads waiting for their turn now, the longest waiting first. Flows are found one by one through the
-- index and each is counted up to $4, so that a million leads cost no more than a few.
WITH RECURSIVE flows AS (
    (SELECT pool_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000') AS campaign, reseller_id, 1 AS nth
     FROM leads WHERE status = 'BACKLOG'
     ORDER BY pool_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000') LIMIT 1)
    UNION ALL
    SELECT next.*, f.nth + 1 FROM flows AS f CROSS JOIN LATERAL (
        SELECT pool_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000'), reseller_id
        FROM leads
        WHERE status = 'BACKLOG'
          AND (pool_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000'))
              > (f.pool_id, f.merchant_id, f.campaign)
        ORDER BY pool_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000') LIMIT 1
    ) AS next
    WHERE f.nth < $5
), heads AS (
    SELECT f.*, first.due_at
    FROM flows AS f CROSS JOIN LATERAL (
        SELECT l.due_at FROM leads AS l
        WHERE l.status = 'BACKLOG' AND l.pool_id = f.pool_id AND l.merchant_id = f.merchant_id
          AND coalesce(l.campaign_id, '00000000-0000-0000-0000-000000000000') = f.campaign
        ORDER BY l.due_at LIMIT 1) AS first
    WHERE ($1::text IS NULL OR f.reseller_id = $1) AND ($2::text IS NULL OR f.merchant_id = $2)
    ORDER BY first.due_at
    LIMIT $3
)
SELECT h.merchant_id, nullif(h.campaign, '00000000-0000-0000-0000-000000000000') AS campaign_id, h.pool_id, h.due_at AS first_due_at,
       counted.due, counted.waiting
FROM heads AS h
-- In the order in which they are due: whatever is due is among the first.
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE first.due_at <= clock_timestamp())::int AS due, count(*)::int AS waiting
    FROM (
        SELECT l.due_at FROM leads AS l
        WHERE l.status = 'BACKLOG' AND l.pool_id = h.pool_id AND l.merchant_id = h.merchant_id
          AND coalesce(l.campaign_id, '00000000-0000-0000-0000-000000000000') = h.campaign
        ORDER BY l.due_at
        LIMIT $4) AS first) AS counted
ORDER BY h.due_at
