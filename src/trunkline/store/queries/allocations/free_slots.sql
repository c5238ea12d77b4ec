-- Slots that dials may be kept on, picked by Postgres: without Valkey, or after a proposal of its met somebody else's row.
-- From a random place: dialers that picked in one order would win a quarter of their picks, at random they win three
-- quarters (measured). No row that heartbeats write is locked. Each tier leaves some slots to callers, and keeps nothing
-- for dials while one of them waits.
-- `reserved` is materialized: else the slots of a tier would be added up once for every free one (260 ms at 5,000 pods).
-- $1 tiers  $2 slots that each leaves to callers, -1: a tenth  $3 at most so many of each tier
-- $4 a caller who has not asked for so many seconds has hung up
WITH able AS MATERIALIZED (
    SELECT p.name, p.tier, p.incarnation, p.calls_max, p.missed
    FROM pods AS p WHERE p.tier = ANY($1::text[]) AND pod_takes(p, true)
), reserved AS MATERIALIZED (
    SELECT t.tier, CASE WHEN t.callers >= 0 THEN t.callers
                        ELSE (SELECT coalesce(sum(a.calls_max), 0) FROM able AS a WHERE a.tier = t.tier)::int / 10 END AS callers
    FROM unnest($1::text[], $2::int[]) AS t (tier, callers)
), free AS (
    SELECT a.tier, a.name, s.slot, a.incarnation,
           row_number() OVER (PARTITION BY a.tier ORDER BY a.missed >= 2, s.slot, random()) AS place,
           count(*) OVER (PARTITION BY a.tier) AS slots
    FROM able AS a CROSS JOIN LATERAL generate_series(1, a.calls_max) AS s (slot)
    WHERE NOT EXISTS (SELECT FROM allocations AS l WHERE l.pod = a.name AND l.slot = s.slot AND l.ended_at IS NULL)
)
SELECT f.tier, f.name AS pod, f.slot, f.incarnation
FROM free AS f JOIN reserved AS r ON r.tier = f.tier
WHERE f.place <= least($3::int, f.slots - r.callers)
  AND NOT EXISTS (SELECT FROM allocations AS w
                  WHERE w.ended_at IS NULL AND w.pod IS NULL AND w.call IS NOT NULL
                    AND w.polled_at > clock_timestamp() - make_interval(secs => $4))
ORDER BY f.tier, f.place
