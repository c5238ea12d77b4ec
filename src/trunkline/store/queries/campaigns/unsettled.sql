-- Campaigns that somebody has to do something about: their end has come, they are being stopped, an edit has not reached
-- their leads, or they should be held back and are not.
SELECT c.id
FROM campaigns AS c
WHERE c.status <> 'STOPPED'
  AND (c.status = 'STOPPING' OR c.ends_at <= clock_timestamp()
       OR (c.pool_id, c.priority, c.max_attempts) IS DISTINCT FROM
          (c.given_pool_id, c.given_priority, c.given_max_attempts)
       OR (c.status IN ('DRAFT', 'PAUSED') AND NOT EXISTS (
              SELECT FROM controls AS k
              WHERE k.scope = 'campaign' AND k.subject = c.merchant_id || '/' || c.id AND k.set_by = 'merchant'
                AND (k.ends_at IS NULL OR k.ends_at > clock_timestamp()))))
ORDER BY c.id
LIMIT $1
