-- Tombstones that nobody needs any more: after a day, or $1 seconds where there was no attempt.
DELETE FROM allocations
WHERE id IN (SELECT id FROM allocations
             WHERE ended_at < clock_timestamp() - CASE WHEN has_attempt THEN interval '1 day'
                                                       ELSE make_interval(secs => $1) END
             ORDER BY id LIMIT 5000 FOR NO KEY UPDATE SKIP LOCKED)
