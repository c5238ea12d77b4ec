-- The next pools in which leads wait, after the given one and round to it again. Jumps from pool to pool in the index: a
-- pool of a million leads costs one step, like a pool of one. While everything is stopped there is none.
-- The second part of the step begins anew at the first pool; it gives a row only if the first part has none.
-- $1 the last pool, or ''  $2 how many
WITH RECURSIVE walk AS (
    SELECT 0 AS lap, $1::text AS pool_id
    UNION ALL
    SELECT next.lap, next.pool_id FROM walk AS w CROSS JOIN LATERAL (
        (SELECT w.lap, l.pool_id FROM leads AS l
         WHERE l.status = 'BACKLOG' AND l.pool_id > w.pool_id
         ORDER BY l.pool_id, l.merchant_id LIMIT 1)
        UNION ALL
        (SELECT 1, l.pool_id FROM leads AS l
         WHERE w.lap = 0 AND l.status = 'BACKLOG'
           AND (SELECT later.pool_id FROM leads AS later WHERE later.status = 'BACKLOG' AND later.pool_id > w.pool_id
                ORDER BY later.pool_id, later.merchant_id LIMIT 1) IS NULL
         ORDER BY l.pool_id, l.merchant_id LIMIT 1)
        LIMIT 1) AS next
    WHERE next.lap = 0 OR next.pool_id <= $1::text
)
SELECT pool_id FROM walk
WHERE NOT EXISTS (SELECT FROM controls
                  WHERE scope IN ('kill_switch', 'promoter') AND (ends_at IS NULL OR ends_at > clock_timestamp()))
OFFSET 1 LIMIT $2
