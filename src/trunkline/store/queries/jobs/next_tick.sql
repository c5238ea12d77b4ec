-- How long until the next tick of these schedules.
SELECT extract(epoch FROM min(next_at) - clock_timestamp())::float8 FROM job_schedules WHERE name = ANY ($1::text[])
