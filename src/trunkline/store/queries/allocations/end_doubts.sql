-- A dial of unknown fate keeps its slot until nothing can ring any more: $1 seconds after it should have been sent.
UPDATE allocations AS a SET ended_at = clock_timestamp(), why = 'doubt'
FROM (SELECT l.id FROM attempts AS t JOIN allocations AS l ON l.id = t.id
      WHERE t.state = 'in_doubt' AND t.send_at < clock_timestamp() - make_interval(secs => $1)
        AND l.ended_at IS NULL AND l.begun_at IS NULL
      ORDER BY l.id FOR NO KEY UPDATE OF l SKIP LOCKED LIMIT 500) AS over
WHERE a.id = over.id
RETURNING a.id, a.pod
