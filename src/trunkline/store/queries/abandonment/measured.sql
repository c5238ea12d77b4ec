-- What became of the calls of a merchant ($1), or of one of its campaigns ($2; NULL: all): over 30 days, the last 24 hours,
-- $3 hours and 10 minutes. Rows stand for the day, hour or minute that they begin, and one that a span begins in counts whole.
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
