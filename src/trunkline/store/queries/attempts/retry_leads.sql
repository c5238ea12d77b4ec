-- The retry transaction: the only way back to BACKLOG. The new version makes every older grant and entry stale. A lead
-- that ended comes back when its agent spoke after the carrier, and then it has not ended.
WITH retried AS (
UPDATE leads AS l
SET status = 'BACKLOG', due_at = r.due_at, closes_at = r.closes_at, version = version + 1,
    carrier_error_count = carrier_error_count + r.carrier_errors, attempt_count = attempt_count - r.uncounted,
    no_agent_count = no_agent_count + r.no_agents,
    outcome = NULL, outcome_reason = NULL, finished_at = NULL, updated_at = clock_timestamp()
FROM unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[], $4::smallint[], $5::smallint[], $7::smallint[])
     AS r (id, due_at, closes_at, carrier_errors, uncounted, no_agents)
WHERE l.id = r.id AND l.status = $6
RETURNING l.id, l.version, l.priority, l.due_at, l.closes_at, l.pool_id, l.reseller_id, l.merchant_id, l.campaign_id,
          l.phone
)
SELECT r.*, p.overflow_pool_id, p.overflow_after_s, CASE WHEN p.region_affinity THEN phone_region(r.phone) END AS region
FROM retried AS r JOIN pools AS p ON p.id = r.pool_id
