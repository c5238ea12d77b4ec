-- Whose leads may be dialled without an agent kept for them, as the scripts name them: merchants and campaigns for which the
-- layers of policy together allow a share of abandoned calls. The least that a layer says counts. A hint for the match, which
-- does not hold them back for want of an agent; the intent decides.
WITH said AS MATERIALIZED (
    SELECT p.scope, p.subject, (p.policy ->> 'abandon_max')::float8 AS most
    FROM policies AS p WHERE jsonb_typeof(p.policy -> 'abandon_max') = 'number'
), merchant AS (
    SELECT m.id, least(r.most, o.most, b.most) AS most
    FROM merchants AS m
    LEFT JOIN said AS r ON r.scope = 'platform'
    LEFT JOIN said AS o ON o.scope = 'reseller' AND o.subject = m.reseller_id
    LEFT JOIN said AS b ON b.scope = 'merchant' AND b.subject = m.id
    WHERE EXISTS (SELECT FROM said)
)
SELECT 'm/' || m.id AS subject FROM merchant AS m WHERE m.most > 0
UNION ALL
SELECT 'c/' || s.subject FROM said AS s
JOIN merchant AS m ON m.id = split_part(s.subject, '/', 1)
WHERE s.scope = 'campaign' AND least(s.most, m.most) > 0
