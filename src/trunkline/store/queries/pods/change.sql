-- Changes pods that took nothing for 2 s, so that no intent in flight is overlooked. One that changes its tier has no call; one
-- whose maximum is lowered has none above it. $1 names  $2 tiers  $3 maxima
WITH wanted AS (
    SELECT * FROM unnest($1::text[], $2::text[], $3::int[]) AS w (name, tier, calls_max)
), ready AS MATERIALIZED (
    SELECT p.name FROM pods AS p JOIN wanted AS w ON w.name = p.name
    WHERE p.changing_since < clock_timestamp() - interval '2 seconds'
      AND NOT EXISTS (SELECT FROM allocations AS a
                      WHERE a.pod = p.name AND a.ended_at IS NULL AND (p.tier <> w.tier OR a.slot > w.calls_max))
    ORDER BY p.name FOR NO KEY UPDATE OF p
)
UPDATE pods AS p SET tier = w.tier, calls_max = w.calls_max, changing_since = NULL
FROM ready AS r JOIN wanted AS w ON w.name = r.name
WHERE p.name = r.name
RETURNING p.name, p.tier
