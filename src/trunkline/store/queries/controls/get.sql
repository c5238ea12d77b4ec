-- What is in force for one subject, of every level.
SELECT *, clock_timestamp() AS seen_at FROM controls
WHERE scope = $1 AND subject = $2
  AND (ends_at IS NULL OR ends_at + make_interval(secs => ramp_s) > clock_timestamp())
