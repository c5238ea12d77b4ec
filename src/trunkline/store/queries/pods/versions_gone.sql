-- A version of which no pod is left is forgotten after ten minutes: when it comes back, it appears anew.
DELETE FROM pod_versions AS v
WHERE v.appeared_at < clock_timestamp() - interval '10 minutes' AND NOT EXISTS (SELECT FROM pods AS p WHERE p.version = v.version)
