-- The version that appeared last.
SELECT version FROM pod_versions ORDER BY appeared_at DESC LIMIT 1
