-- A lead that breaks its own intent must not be tried again and again: it is put off for 30 s, twice as long each time up
-- to an hour, and ends after ten times.
-- $1 lead  $2 version  $3 error
WITH locked AS (
    SELECT id, merchant_id FROM leads WHERE id = $1 AND version = $2 AND status = 'BACKLOG' FOR NO KEY UPDATE
), told AS (
    INSERT INTO decisions AS d (lead_id, reason, merchant_id, subject)
    SELECT id, 'error', merchant_id, $3 FROM locked
    ON CONFLICT (lead_id, reason) DO UPDATE
    SET times = d.times + 1, last_at = clock_timestamp(), subject = EXCLUDED.subject
    RETURNING lead_id, times
), put_off AS (
    UPDATE leads AS l
    SET version = version + 1, updated_at = clock_timestamp(),
        due_at = clock_timestamp() + least(interval '30 seconds' * 2 ^ (t.times - 1), interval '1 hour'),
        status = CASE WHEN t.times < 10 THEN 'BACKLOG' ELSE 'FINISHED' END,
        outcome = CASE WHEN t.times >= 10 THEN 'NO_CONFIG' END,
        outcome_reason = CASE WHEN t.times >= 10 THEN 'ERROR' END,
        finished_at = CASE WHEN t.times >= 10 THEN clock_timestamp() END
    FROM told AS t
    WHERE l.id = t.lead_id
    RETURNING l.*
)
SELECT o.id, o.version, o.priority, o.due_at, o.closes_at, o.pool_id, o.reseller_id, o.merchant_id, o.campaign_id,
       o.outcome, o.outcome_reason, p.overflow_pool_id, p.overflow_after_s,
       CASE WHEN p.region_affinity THEN phone_region(o.phone) END AS region
FROM put_off AS o JOIN pools AS p ON p.id = o.pool_id
