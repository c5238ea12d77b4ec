-- Measures are read for the last quarter of an hour.
DELETE FROM measures WHERE minute < clock_timestamp() - interval '1 hour'
