-- name: are_known
-- Has any pod registered, and not been removed since?
SELECT EXISTS (SELECT FROM pods)

-- name: by_tier
-- How many pods each tier has, and how many of them take calls of new dials: ready, with a recent heartbeat, neither draining
-- nor leaving. A busy pod counts, also where its other handlers hang, so `hanging` is left out here. Read without a lock, for
-- display.
SELECT p.tier, count(*)::int AS pods,
       (count(*) FILTER (WHERE cardinality(p.hanging) < p.calls_max
                           AND pod_takes(jsonb_populate_record(p, '{"hanging": []}'), true)))::int AS able
FROM pods AS p
GROUP BY p.tier
