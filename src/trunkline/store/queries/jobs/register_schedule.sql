-- Make a schedule known. A changed rule counts from now on; an unchanged one keeps its next tick.
INSERT INTO job_schedules AS s (name, job_type, rule, timezone, payload, next_at) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (name) DO UPDATE
SET job_type = excluded.job_type, rule = excluded.rule, timezone = excluded.timezone, payload = excluded.payload,
    next_at = CASE WHEN (s.rule, s.timezone) = (excluded.rule, excluded.timezone) THEN s.next_at
                   ELSE excluded.next_at END
WHERE (s.job_type, s.rule, s.timezone, s.payload)
      IS DISTINCT FROM (excluded.job_type, excluded.rule, excluded.timezone, excluded.payload)
