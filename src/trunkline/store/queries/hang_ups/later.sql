-- When to ask again. NULL: there is nothing left to ask for.
UPDATE attempts AS a
SET hang_up_at = CASE WHEN l.delay_s IS NOT NULL THEN clock_timestamp() + make_interval(secs => l.delay_s) END
FROM (SELECT a.id, l.delay_s
      FROM unnest($1::uuid[], $2::float8[]) AS l (id, delay_s) JOIN attempts AS a ON a.id = l.id
      ORDER BY a.id FOR NO KEY UPDATE OF a) AS l
WHERE a.id = l.id
