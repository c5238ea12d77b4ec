-- Which of these leads still want to be called, and how the schedule should know them.
SELECT l.id, l.version, l.priority, l.due_at, l.closes_at, l.pool_id, l.reseller_id, l.merchant_id, l.campaign_id,
       p.overflow_pool_id, p.overflow_after_s, CASE WHEN p.region_affinity THEN phone_region(l.phone) END AS region
FROM leads AS l JOIN pools AS p ON p.id = l.pool_id
WHERE l.id = ANY($1::uuid[]) AND l.status = 'BACKLOG'
