-- One control, if it is in force.
SELECT *, clock_timestamp() AS seen_at FROM controls
WHERE scope = $1 AND subject = $2
  AND (ends_at IS NULL OR ends_at + make_interval(secs => ramp_s) > clock_timestamp())
