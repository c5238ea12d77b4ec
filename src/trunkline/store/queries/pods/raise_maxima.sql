-- A higher maximum hurts nobody, so it counts at once. $1 names  $2 maxima
WITH locked AS MATERIALIZED (SELECT name FROM pods WHERE name = ANY($1::text[]) ORDER BY name FOR NO KEY UPDATE)
UPDATE pods AS p SET calls_max = greatest(p.calls_max, w.calls_max)
FROM locked AS l JOIN unnest($1::text[], $2::int[]) AS w (name, calls_max) ON w.name = l.name
WHERE p.name = l.name
