-- The calls that have this pod.
SELECT call FROM allocations WHERE pod = $1 AND ended_at IS NULL AND call IS NOT NULL ORDER BY begun_at
