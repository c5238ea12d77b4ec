-- Count calls that ended, and keep those that were abandoned: a person answered, and there was no agent, or whoever was
-- dialled without one reserved waited longer than the threshold. Each attempt once: it ends once.
-- $1 attempts, $2 resellers, $3 merchants, $4 campaigns, $5 leads, $6 phones; whether $7 answered, $8 by a person, $9 without
-- an agent; $10 thresholds in seconds
WITH told AS MATERIALIZED (
    SELECT t.*, t.by_person AND a.overdial_group IS NOT NULL AS overdialled,
           t.by_person AND (t.no_agent OR coalesce(al.begun_at - al.asked_at > make_interval(secs => t.threshold_s), false))
               AS is_abandoned
    FROM unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[], $5::uuid[], $6::text[], $7::bool[], $8::bool[], $9::bool[],
                $10::float8[])
        AS t (id, reseller_id, merchant_id, campaign_id, lead_id, phone, answered, by_person, no_agent, threshold_s)
    LEFT JOIN attempts AS a ON t.by_person AND a.id = t.id
    LEFT JOIN allocations AS al ON a.overdial_group IS NOT NULL AND al.id = a.id
), kept AS (
    INSERT INTO abandoned_calls (attempt_id, lead_id, reseller_id, merchant_id, campaign_id, phone, overdialled)
    SELECT id, lead_id, reseller_id, merchant_id, campaign_id, phone, overdialled FROM told WHERE is_abandoned
    ON CONFLICT DO NOTHING
    RETURNING attempt_id, overdialled
), counted AS (
    INSERT INTO call_counts (reseller_id, merchant_id, campaign_id, ended, answered, by_person, abandoned)
    SELECT reseller_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000'), count(*),
           count(*) FILTER (WHERE answered), count(*) FILTER (WHERE by_person), count(*) FILTER (WHERE is_abandoned)
    FROM told
    GROUP BY 1, 2, 3
)
SELECT overdialled FROM kept
