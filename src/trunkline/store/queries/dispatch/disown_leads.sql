-- Leads whose attempt was never sent are due again at once, and the attempt does not count. A lead that is being called by
-- another attempt meanwhile is left to it. One that somebody asked to abort meanwhile ends here: nobody was called.
WITH back AS (
    UPDATE leads AS l
    SET status = CASE WHEN l.cancel_requested_at IS NULL THEN 'BACKLOG' ELSE 'FINISHED' END,
        outcome = CASE WHEN l.cancel_requested_at IS NULL THEN l.outcome ELSE 'ABORTED' END,
        outcome_reason = CASE WHEN l.cancel_requested_at IS NULL THEN l.outcome_reason ELSE l.cancel_reason END,
        finished_at = CASE WHEN l.cancel_requested_at IS NOT NULL THEN clock_timestamp() END,
        attempt_count = attempt_count - 1, version = version + 1, updated_at = clock_timestamp()
    WHERE l.id = ANY($1::uuid[]) AND l.status = 'PROCESSING'
      AND NOT EXISTS (SELECT FROM attempts AS a
                      WHERE a.lead_id = l.id AND a.state IN ('dialing', 'in_doubt', 'accepted', 'ringing', 'answered'))
    RETURNING l.id, l.version, l.priority, l.due_at, l.closes_at, l.pool_id, l.reseller_id, l.merchant_id, l.campaign_id,
          l.phone, l.status
)
SELECT b.*, p.overflow_pool_id, p.overflow_after_s, CASE WHEN p.region_affinity THEN phone_region(b.phone) END AS region
FROM back AS b JOIN pools AS p ON p.id = b.pool_id
WHERE b.status = 'BACKLOG'
