-- As measured.sql, for the platform or a reseller ($1), and with what was abandoned alone: from what is added up for resellers,
-- and what nobody has folded yet.
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
