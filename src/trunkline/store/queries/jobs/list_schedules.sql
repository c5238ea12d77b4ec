-- Every schedule that was ever declared.
SELECT name, job_type, rule, timezone, next_at, last_at FROM job_schedules ORDER BY name
