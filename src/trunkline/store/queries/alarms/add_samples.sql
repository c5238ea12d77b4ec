-- What was seen now.
INSERT INTO alarm_samples (at, name, subject, value)
SELECT clock_timestamp(), name, subject, value
FROM unnest($1::text[], $2::text[], $3::float8[]) AS seen (name, subject, value)
