-- The greatest value of a gauge that any process has seen in this minute.
INSERT INTO measures AS m (minute, name, subject, value)
SELECT date_trunc('minute', clock_timestamp()), name, subject, value
FROM unnest($1::text[], $2::text[], $3::float8[]) AS seen (name, subject, value)
ORDER BY name, subject
ON CONFLICT (minute, name, subject) DO UPDATE SET value = greatest(m.value, excluded.value)
