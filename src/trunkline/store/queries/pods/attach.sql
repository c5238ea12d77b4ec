-- Gives a call back to the pod that names it, on its lowest free slot.
-- $1 allocation  $2 pod
UPDATE allocations AS a
SET pod = p.name, incarnation = p.incarnation, joined_at = coalesce(a.joined_at, clock_timestamp()),
    source_pool = CASE WHEN p.tier LIKE 'merchant:%' THEN p.tier ELSE 'pool:' || p.tier END,
    slot = (SELECT min(s.slot) FROM generate_series(1, p.calls_max) AS s (slot)
            WHERE NOT EXISTS (SELECT FROM allocations AS l WHERE l.pod = p.name AND l.slot = s.slot AND l.ended_at IS NULL))
FROM pods AS p
WHERE a.id = $1 AND p.name = $2 AND a.ended_at IS NULL AND a.pod IS NULL
  AND EXISTS (SELECT FROM generate_series(1, p.calls_max) AS s (slot)
              WHERE NOT EXISTS (SELECT FROM allocations AS l WHERE l.pod = p.name AND l.slot = s.slot AND l.ended_at IS NULL))
RETURNING a.id
