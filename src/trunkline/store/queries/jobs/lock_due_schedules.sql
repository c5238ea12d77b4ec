-- Schedules whose tick has come. Whoever has the lock enqueues it, and moves the tick in the same transaction.
SELECT name, job_type, rule, timezone, payload, next_at, now() AS now FROM job_schedules
WHERE name = ANY ($1::text[]) AND next_at <= now()
ORDER BY name
FOR UPDATE SKIP LOCKED
