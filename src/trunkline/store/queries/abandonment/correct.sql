-- An agent spoke after the carrier: the call was not abandoned, or it was no person who answered. Counted when it is told,
-- as the row of its own time may be folded by now.
-- $1 attempts, $2 resellers, $3 merchants, $4 campaigns; $5 whether a machine answered; $6 whether they all had an agent
WITH told AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[], $5::bool[])
        AS t (id, reseller_id, merchant_id, campaign_id, by_machine)
), found AS (
    DELETE FROM abandoned_calls WHERE NOT $6 AND attempt_id = ANY($1) RETURNING attempt_id
)
INSERT INTO call_counts (reseller_id, merchant_id, campaign_id, ended, answered, by_person, abandoned)
SELECT t.reseller_id, t.merchant_id, coalesce(t.campaign_id, '00000000-0000-0000-0000-000000000000'), 0, 0,
       -count(*) FILTER (WHERE t.by_machine), -count(f.attempt_id)
FROM told AS t LEFT JOIN found AS f ON f.attempt_id = t.id
WHERE $6 OR f.attempt_id IS NOT NULL
GROUP BY 1, 2, 3
