-- Forget finished jobs, the oldest first. Ids begin with their time, so the primary key leads to the old ones; what was
-- enqueued long ago and finished lately is kept.
DELETE FROM job_history
WHERE id = ANY (ARRAY(
    SELECT id FROM job_history WHERE id < $1 AND finished_at < $2 ORDER BY id LIMIT $3
))
