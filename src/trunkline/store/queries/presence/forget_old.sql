-- Processes that have been silent for an hour.
DELETE FROM processes WHERE seen_at < clock_timestamp() - interval '1 hour'
