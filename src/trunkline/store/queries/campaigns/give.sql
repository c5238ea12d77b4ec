-- Give some waiting leads what was edited, where they still have what they were given: a row of the upload that named a
-- priority of its own keeps it. They are locked in id order; one that a dialer holds is left for the next time.
-- $1 campaign  $2 merchant  $3 how many  $4, $5, $6 pool, priority and attempts before  $7, $8, $9 and now
WITH found AS MATERIALIZED (
    SELECT id FROM leads
    WHERE campaign_id = $1 AND merchant_id = $2 AND status IN ('BACKLOG', 'PROCESSING')
      AND ((pool_id = $4 AND $4 <> $7) OR (priority = $5 AND $5 <> $8) OR (max_attempts = $6 AND $6 <> $9))
    ORDER BY id
    LIMIT $3
    FOR NO KEY UPDATE SKIP LOCKED
), given AS (
    UPDATE leads AS l
    SET pool_id = CASE WHEN pool_id = $4 THEN $7 ELSE pool_id END,
        priority = CASE WHEN priority = $5 THEN $8 ELSE priority END,
        max_attempts = CASE WHEN max_attempts = $6 THEN $9 ELSE max_attempts END,
        version = CASE WHEN status = 'BACKLOG' THEN version + 1 ELSE version END, updated_at = clock_timestamp()
    FROM found AS f
    WHERE l.id = f.id
    RETURNING l.id
)
SELECT (SELECT count(*) FROM given) AS given, EXISTS (
    SELECT FROM leads
    WHERE campaign_id = $1 AND merchant_id = $2 AND status IN ('BACKLOG', 'PROCESSING')
      AND ((pool_id = $4 AND $4 <> $7) OR (priority = $5 AND $5 <> $8) OR (max_attempts = $6 AND $6 <> $9))
      AND id NOT IN (SELECT id FROM given)) AS more
