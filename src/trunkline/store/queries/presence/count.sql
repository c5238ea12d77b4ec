-- What a process counted since its last word, added to what the others counted in this minute. Rows in their order:
-- two processes that write the same ones must not wait for each other.
INSERT INTO measures AS m (minute, name, subject, value)
SELECT date_trunc('minute', clock_timestamp()), name, subject, value
FROM unnest($1::text[], $2::text[], $3::float8[]) AS counted (name, subject, value)
ORDER BY name, subject
ON CONFLICT (minute, name, subject) DO UPDATE SET value = m.value + excluded.value
