-- No alarm looks further back.
DELETE FROM alarm_samples WHERE at < clock_timestamp() - make_interval(secs => $1)
