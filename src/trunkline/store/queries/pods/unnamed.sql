-- Calls that were given a pod $1 seconds ago, and that it has not named since: they never came.
SELECT a.id, a.call, a.pod
FROM allocations AS a JOIN pods AS p ON p.name = a.pod AND p.incarnation = a.incarnation
WHERE a.ended_at IS NULL AND a.joined_at IS NULL AND a.call IS NOT NULL
  AND a.begun_at < clock_timestamp() - make_interval(secs => $1)
  AND p.sequence > 0 AND p.heard_at > a.begun_at + make_interval(secs => $1) AND NOT a.call = ANY(p.named)
ORDER BY a.begun_at LIMIT 100
