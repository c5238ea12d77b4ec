-- What becomes of leads that were refused: they end, or get their new due time, and the reason is kept. Their rows are
-- locked since the first step. A statement of its own, because most intents refuse nobody.
-- $1-$3 leads that end: lead, outcome, reason   $4-$6 leads that move: lead, due, end of the window
-- $7-$11 decisions: lead, reason, merchant, subject, until
WITH ended AS (
    UPDATE leads AS l
    SET status = 'FINISHED', outcome = e.outcome, outcome_reason = e.reason, version = version + 1,
        finished_at = clock_timestamp(), updated_at = clock_timestamp()
    FROM unnest($1::uuid[], $2::text[], $3::text[]) AS e (id, outcome, reason)
    WHERE l.id = e.id
), moved AS (
    UPDATE leads AS l
    SET due_at = v.due_at, closes_at = v.closes_at, version = version + 1, updated_at = clock_timestamp()
    FROM unnest($4::uuid[], $5::timestamptz[], $6::timestamptz[]) AS v (id, due_at, closes_at)
    WHERE l.id = v.id
    RETURNING l.id, l.version, l.priority, l.due_at, l.closes_at, l.pool_id, l.reseller_id, l.merchant_id, l.campaign_id,
          l.phone
), told AS (
    INSERT INTO decisions AS d (lead_id, reason, merchant_id, subject, until)
    SELECT * FROM unnest($7::uuid[], $8::text[], $9::text[], $10::text[], $11::timestamptz[])
    ON CONFLICT (lead_id, reason) DO UPDATE
    SET times = d.times + 1, last_at = clock_timestamp(), until = EXCLUDED.until, subject = EXCLUDED.subject
)
SELECT v.*, p.overflow_pool_id, p.overflow_after_s, CASE WHEN p.region_affinity THEN phone_region(v.phone) END AS region
FROM moved AS v JOIN pools AS p ON p.id = v.pool_id
