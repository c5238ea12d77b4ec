-- Slots of dials that are over or never were: nothing should leave one behind, so each is told of. 10 s: an intent commits
-- its attempt and its slot together, and a note of an answer may come before the attempt is seen.
UPDATE allocations AS a SET ended_at = clock_timestamp(), why = 'stray'
FROM (SELECT l.id FROM allocations AS l
      WHERE l.ended_at IS NULL AND l.has_attempt AND l.asked_at < clock_timestamp() - interval '10 seconds'
        AND NOT EXISTS (SELECT FROM attempts AS t
                        WHERE t.id = l.id AND t.state IN ('dialing', 'in_doubt', 'accepted', 'ringing', 'answered'))
      ORDER BY l.id FOR NO KEY UPDATE OF l SKIP LOCKED LIMIT 500) AS over
WHERE a.id = over.id
RETURNING a.id, a.pod
