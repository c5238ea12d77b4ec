-- Claim no more jobs of a type. What runs goes on.
INSERT INTO job_pauses (job_type, reason, paused_by) VALUES ($1, $2, $3)
ON CONFLICT (job_type) DO UPDATE SET reason = excluded.reason, paused_by = excluded.paused_by, paused_at = now()
