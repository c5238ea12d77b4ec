-- What was seen in the last $1 seconds, oldest first.
SELECT name, subject, extract(epoch FROM clock_timestamp() - at)::float8 AS age_s, value
FROM alarm_samples
WHERE at > clock_timestamp() - make_interval(secs => $1)
ORDER BY at
