-- name: are_known
-- Has any agent ever been heard, and not been removed since?
SELECT EXISTS (SELECT FROM pods)

-- name: by_tier
-- How many pods each tier has, and how many of them take calls of new dials: ready, heard lately, neither draining nor
-- leaving. One that talks counts, also where its other handlers hang: so it is asked as if none did. Read without a lock, for
-- people who want to know.
SELECT p.tier, count(*)::int AS pods,
       (count(*) FILTER (WHERE cardinality(p.hanging) < p.calls_max
                           AND pod_takes(jsonb_populate_record(p, '{"hanging": []}'), true)))::int AS able
FROM pods AS p
GROUP BY p.tier
