-- Rows that say nothing any more.
DELETE FROM controls WHERE ends_at + make_interval(secs => ramp_s) <= clock_timestamp()
