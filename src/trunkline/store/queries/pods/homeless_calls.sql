-- Live calls without a pod that a pod names: it has them, whatever was lost or met another call on its slot on the way.
-- $1 pods  $2 calls
SELECT a.id, s.pod, p.incarnation, p.calls_max, p.tier
FROM unnest($1::text[], $2::text[]) AS s (pod, call)
JOIN allocations AS a ON a.call = s.call AND a.ended_at IS NULL AND a.pod IS NULL
JOIN pods AS p ON p.name = s.pod
ORDER BY a.id
