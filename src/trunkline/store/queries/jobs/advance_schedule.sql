-- The tick was enqueued.
UPDATE job_schedules SET next_at = $2, last_at = $3 WHERE name = $1
