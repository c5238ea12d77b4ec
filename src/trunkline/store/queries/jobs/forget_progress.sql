-- Drop what finished jobs said of themselves while they ran; the history has their last word.
DELETE FROM job_progress AS p
WHERE p.updated_at < now() - interval '1 hour' AND NOT EXISTS (SELECT FROM job_outbox AS o WHERE o.id = p.job_id)
