-- Processes that were heard of within $1 seconds, by role. A role that lately had some and has none is 0.
SELECT role, count(*) FILTER (WHERE seen_at > clock_timestamp() - make_interval(secs => $1)) AS alive
FROM processes CROSS JOIN unnest(roles) AS role
GROUP BY role
