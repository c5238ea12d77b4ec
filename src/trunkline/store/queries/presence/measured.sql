-- What was counted in the last $1 minutes, the present one included.
SELECT name, subject, extract(epoch FROM date_trunc('minute', clock_timestamp()) - minute)::int / 60 AS minutes_ago, value
FROM measures
WHERE minute > clock_timestamp() - make_interval(mins => $1)
