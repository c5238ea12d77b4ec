-- How far a campaign is, from what is kept of it: by status and outcome, with their attempts and those that ended within
-- the last ten minutes. When the next one is due is asked of the index of each pool that its leads may wait in.
SELECT c.status, c.outcome, sum(c.leads)::bigint AS leads, sum(c.attempts)::bigint AS attempts,
       coalesce(sum(c.leads) FILTER (WHERE c.status = 'FINISHED' AND c.at > clock_timestamp() - interval '10 minutes'),
                0)::bigint AS lately,
       sum(c.tried)::bigint AS tried, min(c.first_finished_at) AS first_finished_at, max(c.last_finished_at) AS last_finished_at,
       CASE WHEN c.status = 'BACKLOG' THEN (
           SELECT min(first.due_at)
           FROM pools AS p
           CROSS JOIN LATERAL (
               SELECT l.due_at FROM leads AS l
               WHERE l.status = 'BACKLOG' AND l.pool_id = p.id AND l.merchant_id = $2
                 AND coalesce(l.campaign_id, '00000000-0000-0000-0000-000000000000') = $1
               ORDER BY l.due_at LIMIT 1) AS first
           WHERE p.reseller_id IS NULL OR (p.reseller_id = $3 AND (p.merchant_id IS NULL OR p.merchant_id = $2))
       ) END AS next_due_at
FROM campaign_counts AS c
WHERE c.campaign_id = $1 AND c.merchant_id = $2
GROUP BY c.status, c.outcome
HAVING sum(c.leads) <> 0
