-- Every router says every second that heartbeats can be heard. After a gap, or when the clock ran backwards, silence counts
-- from now on.
UPDATE pod_hearing
SET since = CASE WHEN clock_timestamp() - ran_at > interval '5 seconds' OR ran_at > clock_timestamp() + interval '1 second'
                 THEN clock_timestamp() ELSE least(since, clock_timestamp()) END,
    ran_at = clock_timestamp()
