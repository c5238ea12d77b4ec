-- Asked inside the transaction of an intent, where no process's view can be late: is starting calls allowed at all, and
-- is this the database that the caller knows ($1), or an earlier moment of it?
SELECT c.beat >= $2 AND c.installation = $1 AND NOT EXISTS (
           SELECT FROM controls
           WHERE scope IN ('kill_switch', 'promoter') AND (ends_at IS NULL OR ends_at > clock_timestamp()))
FROM continuity c
