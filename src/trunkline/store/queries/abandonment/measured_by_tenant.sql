-- As measured.sql, for a platform, a reseller ($1) or a merchant ($2), and with what was abandoned alone. Days that are over
-- are read from an index of their own: a row for each campaign that called.
WITH counted AS (
    SELECT at, by_person, abandoned FROM call_counts
    WHERE grain = 'day' AND at >= date_trunc('day', clock_timestamp() - interval '30 days', 'UTC')
      AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
    UNION ALL
    SELECT at, by_person, abandoned FROM call_counts
    WHERE grain <> 'day' AND at >= date_trunc('day', clock_timestamp() - interval '30 days', 'UTC')
      AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
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
