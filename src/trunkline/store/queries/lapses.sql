-- name: end_cut_over
-- End leads that were due before their merchant's cutover: the system that they came from has called them. Locked ones are
-- skipped.
UPDATE leads AS l
SET status = 'FINISHED', outcome = 'ABORTED', outcome_reason = 'DUE_BEFORE_CUTOVER', version = l.version + 1,
    finished_at = clock_timestamp(), updated_at = clock_timestamp()
FROM (SELECT w.id FROM cutovers AS c
      JOIN leads AS w ON w.merchant_id = c.merchant_id AND w.status = 'BACKLOG' AND w.due_at < c.since
      LIMIT $1
      FOR NO KEY UPDATE OF w SKIP LOCKED) AS lapsed
WHERE l.id = lapsed.id
RETURNING l.id

-- name: expire
-- End leads that wait past the expiry that their sender set. Locked ones are skipped.
UPDATE leads AS l
SET status = 'FINISHED', outcome = 'EXPIRED', version = l.version + 1, finished_at = clock_timestamp(),
    updated_at = clock_timestamp()
FROM (SELECT id FROM leads
      WHERE status = 'BACKLOG' AND expires_at <= clock_timestamp()
      ORDER BY expires_at
      LIMIT $1
      FOR NO KEY UPDATE SKIP LOCKED) AS lapsed
WHERE l.id = lapsed.id
RETURNING l.id

-- name: forget_cutovers
-- Cutovers without a lead left. Not before five minutes: a lead that was ingested meanwhile may be committed late.
DELETE FROM cutovers AS c
WHERE c.since < clock_timestamp() - interval '5 minutes'
  AND NOT EXISTS (SELECT FROM leads AS l
                  WHERE l.merchant_id = c.merchant_id AND l.status = 'BACKLOG' AND l.due_at < c.since)
