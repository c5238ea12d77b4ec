-- Everything that is stopped, or still growing back after a stop.
SELECT *, clock_timestamp() AS seen_at FROM controls
WHERE ends_at IS NULL OR ends_at + make_interval(secs => ramp_s) > clock_timestamp()
