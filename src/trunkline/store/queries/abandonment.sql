-- name: correct
-- An agent reported after the carrier: the call was not abandoned, or a machine had answered. Counted in the minute of the
-- report, as the row of its own time may be folded by now.
-- $1 attempts, $2 resellers, $3 merchants, $4 campaigns; $5 whether a machine answered; $6 whether they all had an agent
WITH corrections AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[], $5::bool[])
        AS t (id, reseller_id, merchant_id, campaign_id, by_machine)
), abandoned_before AS (
    DELETE FROM abandoned_calls WHERE NOT $6 AND attempt_id = ANY($1) RETURNING attempt_id
)
INSERT INTO call_counts (reseller_id, merchant_id, campaign_id, ended, answered, by_person, abandoned)
SELECT t.reseller_id, t.merchant_id, coalesce(t.campaign_id, '00000000-0000-0000-0000-000000000000'), 0, 0,
       -count(*) FILTER (WHERE t.by_machine), -count(f.attempt_id)
FROM corrections AS t LEFT JOIN abandoned_before AS f ON f.attempt_id = t.id
WHERE $6 OR f.attempt_id IS NOT NULL
GROUP BY 1, 2, 3

-- name: count
-- Count ended calls, and store the abandoned ones: a person answered, and there was no agent, or a call without a reserved
-- agent waited longer than the threshold. Each attempt once: it ends once.
-- $1 attempts, $2 resellers, $3 merchants, $4 campaigns, $5 leads, $6 phones; whether $7 answered, $8 by a person, $9 without
-- an agent; $10 thresholds in seconds
WITH ended_calls AS MATERIALIZED (
    SELECT t.*, t.by_person AND a.overdial_group IS NOT NULL AS overdialled,
           t.by_person AND (t.no_agent OR coalesce(al.begun_at - al.asked_at > make_interval(secs => t.threshold_s), false))
               AS is_abandoned
    FROM unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[], $5::uuid[], $6::text[], $7::bool[], $8::bool[], $9::bool[],
                $10::float8[])
        AS t (id, reseller_id, merchant_id, campaign_id, lead_id, phone, answered, by_person, no_agent, threshold_s)
    LEFT JOIN attempts AS a ON t.by_person AND a.id = t.id
    LEFT JOIN allocations AS al ON a.overdial_group IS NOT NULL AND al.id = a.id
), stored AS (
    INSERT INTO abandoned_calls (attempt_id, lead_id, reseller_id, merchant_id, campaign_id, phone, overdialled)
    SELECT id, lead_id, reseller_id, merchant_id, campaign_id, phone, overdialled FROM ended_calls WHERE is_abandoned
    ON CONFLICT DO NOTHING
    RETURNING attempt_id, overdialled
), counted AS (
    INSERT INTO call_counts (reseller_id, merchant_id, campaign_id, ended, answered, by_person, abandoned)
    SELECT reseller_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000'), count(*),
           count(*) FILTER (WHERE answered), count(*) FILTER (WHERE by_person), count(*) FILTER (WHERE is_abandoned)
    FROM ended_calls
    GROUP BY 1, 2, 3
)
SELECT overdialled FROM stored

-- name: count_late
-- Calls that were counted as answered by a person when they ended, and that turn out to have had no agent: while Postgres is
-- unavailable, the document of a call is written later. Each once, in the minute in which it is written.
-- $1 attempts
WITH stored AS (
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
    FROM stored
    GROUP BY 1, 2, 3
)
SELECT overdialled FROM stored

-- name: fold
-- Fold the counts: single settlements into minutes, minutes older than two hours into hours, hours older than two days into
-- days. Settlements are also added up for their reseller (no merchant): the overview reads these, however many campaigns
-- call. Nothing is done while fewer than $1 rows wait. One statement deletes rows and inserts their sum: concurrent readers
-- see each count once.
WITH ripe AS MATERIALIZED (
    SELECT ctid FROM call_counts
    WHERE grain <> 'day'
      AND (grain = 'call' OR (grain = 'minute' AND at < clock_timestamp() - interval '2 hours')
           OR at < clock_timestamp() - interval '2 days')
    ORDER BY at LIMIT $2
), deleted AS (
    DELETE FROM call_counts
    WHERE ctid = ANY (ARRAY(
        SELECT c.ctid FROM call_counts AS c
        WHERE (SELECT count(*) FROM ripe) >= $1 AND c.ctid = ANY (ARRAY(SELECT ctid FROM ripe))
        FOR UPDATE SKIP LOCKED))
    RETURNING *, CASE WHEN at < clock_timestamp() - interval '2 days' THEN 'day'
                      WHEN at < clock_timestamp() - interval '2 hours' THEN 'hour' ELSE 'minute' END AS coarser
), due AS (
    SELECT * FROM deleted
    UNION ALL
    SELECT reseller_id, '', '00000000-0000-0000-0000-000000000000', at, grain, ended, answered, by_person, abandoned, coarser
    FROM deleted WHERE grain = 'call'
), folded AS (
    INSERT INTO call_counts (reseller_id, merchant_id, campaign_id, at, grain, ended, answered, by_person, abandoned)
    SELECT reseller_id, merchant_id, campaign_id, date_trunc(coarser, at, 'UTC'), coarser, sum(ended), sum(answered),
           sum(by_person), sum(abandoned)
    FROM due
    GROUP BY 1, 2, 3, 4, 5
)
SELECT count(*) FROM deleted

-- name: measured
-- The outcomes of the calls of a merchant ($1), or of one of its campaigns ($2; NULL: all): over 30 days, the last 24 hours,
-- $3 hours and 10 minutes. A row stands for the day, hour or minute that it begins, and one that a span begins in counts whole.
WITH counted AS (
    SELECT at, ended, answered, by_person, abandoned FROM call_counts
    WHERE merchant_id = $1 AND at >= date_trunc('day', clock_timestamp() - interval '30 days', 'UTC')
      AND ($2::uuid IS NULL OR campaign_id = $2)
), span (name, since) AS (
    VALUES ('30d', date_trunc('day', clock_timestamp() - interval '30 days', 'UTC')),
           ('24h', date_trunc('hour', clock_timestamp() - interval '24 hours')),
           ('window', date_trunc('hour', clock_timestamp() - make_interval(hours => $3))),
           ('10m', date_trunc('minute', clock_timestamp() - interval '10 minutes'))
)
SELECT s.name, coalesce(sum(c.ended), 0)::bigint AS ended, coalesce(sum(c.answered), 0)::bigint AS answered,
       coalesce(sum(c.by_person), 0)::bigint AS by_person, coalesce(sum(c.abandoned), 0)::bigint AS abandoned
FROM span AS s LEFT JOIN counted AS c ON c.at >= s.since
GROUP BY s.name

-- name: measured_by_tenant
-- As `measured`, for the platform or a reseller ($1), and with the abandoned calls alone: from the sums of resellers, and the
-- rows that are not folded yet.
WITH counted AS (
    SELECT at, by_person, abandoned FROM call_counts
    WHERE merchant_id = '' AND campaign_id = '00000000-0000-0000-0000-000000000000'
      AND at >= date_trunc('day', clock_timestamp() - interval '30 days', 'UTC') AND ($1::text IS NULL OR reseller_id = $1)
    UNION ALL
    SELECT at, by_person, abandoned FROM call_counts WHERE grain = 'call' AND ($1::text IS NULL OR reseller_id = $1)
)
SELECT coalesce(sum(by_person), 0)::bigint AS by_person_30d, coalesce(sum(abandoned), 0)::bigint AS abandoned_30d,
       coalesce(sum(by_person) FILTER (WHERE at >= date_trunc('hour', clock_timestamp() - interval '24 hours')), 0)::bigint
           AS by_person_24h,
       coalesce(sum(abandoned) FILTER (WHERE at >= date_trunc('hour', clock_timestamp() - interval '24 hours')), 0)::bigint
           AS abandoned_24h,
       coalesce(sum(by_person) FILTER (WHERE at >= date_trunc('minute', clock_timestamp() - interval '10 minutes')), 0)::bigint
           AS by_person_10m,
       coalesce(sum(abandoned) FILTER (WHERE at >= date_trunc('minute', clock_timestamp() - interval '10 minutes')), 0)::bigint
           AS abandoned_10m
FROM counted

-- name: recent
-- The last hour of each of these campaigns, newest first, for their answer rates. The zero id: the merchant's leads without a
-- campaign.
-- $1 merchants, $2 campaigns
SELECT w.merchant_id, w.campaign_id, c.at, c.ended, c.answered, c.by_person, c.abandoned, clock_timestamp() AS now
FROM unnest($1::text[], $2::uuid[]) AS w (merchant_id, campaign_id)
JOIN call_counts AS c ON c.merchant_id = w.merchant_id AND c.campaign_id = w.campaign_id
WHERE c.at > clock_timestamp() - interval '61 minutes'
ORDER BY c.at DESC
