-- The next leads of one flow, in the order in which they are called: what is overdue by priority and due, then what
-- is due before the horizon by due. Overdue leads are read priority by priority, so that each step is one index range.
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
