-- Forget dead letters that nobody has asked for in a long time.
DELETE FROM job_dead
WHERE id = ANY (ARRAY(
    SELECT id FROM job_dead WHERE id < $1 AND died_at < $2 ORDER BY id LIMIT $3
))
