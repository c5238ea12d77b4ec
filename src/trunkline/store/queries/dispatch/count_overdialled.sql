-- Under the locks of its groups, and in a later statement than they were taken in: what rings without an agent kept for it,
-- and which agents are free for it. A call rings until it has a row of its own, which it gets when it is answered.
-- Free is a slot of a pod that takes dials, less those for callers and one for everybody who waits, or who rings after his pod
-- was lost. Also: which of these persons their merchant abandoned before.
-- $1 groups and $2 their tiers, in pairs  $3 slots that each tier leaves to callers, -1: a tenth
-- $4 who has not asked for so many seconds has hung up  $5 merchants, $6 phones
WITH asked AS MATERIALIZED (
    SELECT t.name, t.tier, t.callers FROM unnest($1::text[], $2::text[], $3::int[]) AS t (name, tier, callers)
), pod AS MATERIALIZED (
    SELECT t.name, t.tier, p.calls_max,
           -- One that its last calls did not reach is given one at a time.
           least(p.calls_max - (SELECT count(*) FROM allocations AS l
                                WHERE l.pod = p.name AND l.slot <= p.calls_max AND l.ended_at IS NULL),
                 CASE WHEN p.missed >= 2 THEN 1 END) AS free
    FROM asked AS t JOIN pods AS p ON p.tier = t.tier
    WHERE pod_takes(p, true)
), tier AS (
    SELECT t.name, t.tier,
           greatest(0, coalesce(sum(p.free), 0)
                       - CASE WHEN t.callers >= 0 THEN t.callers ELSE coalesce(sum(p.calls_max), 0)::int / 10 END) AS free
    FROM asked AS t LEFT JOIN pod AS p ON p.name = t.name AND p.tier = t.tier
    GROUP BY t.name, t.tier, t.callers
), waiting AS (
    SELECT count(*) AS calls FROM allocations AS w
    WHERE w.ended_at IS NULL AND w.pod IS NULL
      AND (w.call IS NULL OR w.polled_at > clock_timestamp() - make_interval(secs => $4))
)
SELECT g.name, NULL AS phone, greatest(0, g.free - w.calls)::int AS free, r.calls::int AS calls,
       r.answers_expected, r.abandon_max
FROM (SELECT t.name, sum(t.free) AS free FROM tier AS t GROUP BY t.name) AS g
CROSS JOIN waiting AS w
CROSS JOIN LATERAL (
    SELECT count(*) AS calls, coalesce(sum(a.answer_rate::float8), 0) AS answers_expected,
           coalesce(min(a.abandon_max::float8), 1) AS abandon_max
    FROM attempts AS a
    WHERE a.overdial_group = g.name AND a.state IN ('dialing', 'in_doubt', 'accepted', 'ringing')
      AND NOT EXISTS (SELECT FROM allocations AS l WHERE l.id = a.id)
) AS r
UNION ALL
SELECT q.merchant_id, q.phone, NULL, NULL, NULL, NULL
FROM unnest($5::text[], $6::text[]) AS q (merchant_id, phone)
WHERE EXISTS (SELECT FROM abandoned_calls AS c WHERE c.merchant_id = q.merchant_id AND c.phone = q.phone)
