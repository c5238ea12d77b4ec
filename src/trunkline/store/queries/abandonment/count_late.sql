-- Calls that were counted as answered by a person when they ended, and of which it became known afterwards that no agent was
-- there: what the carrier was told is written down later while Postgres is away. Each once, in the minute in which it is told.
-- $1 attempts
WITH kept AS (
    INSERT INTO abandoned_calls (attempt_id, lead_id, reseller_id, merchant_id, campaign_id, phone, overdialled)
    SELECT a.id, a.lead_id, a.reseller_id, a.merchant_id, a.campaign_id, a.to_phone, a.overdial_group IS NOT NULL
    FROM attempts AS a
    WHERE a.id = ANY($1::uuid[])
    ORDER BY a.id
    ON CONFLICT DO NOTHING
    RETURNING reseller_id, merchant_id, campaign_id, overdialled
), counted AS (
    INSERT INTO call_counts (reseller_id, merchant_id, campaign_id, ended, answered, by_person, abandoned)
    SELECT reseller_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000'), 0, 0, 0, count(*)
    FROM kept
    GROUP BY 1, 2, 3
)
SELECT overdialled FROM kept
