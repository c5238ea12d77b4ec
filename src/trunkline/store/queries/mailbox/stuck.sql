-- Mailboxes that have been in hand for long: a handler that takes its time, or a worker that died with a long lease.
SELECT kind, key, processing_status, appended, processed, failures, last_error, locked_by, claimable_at,
       processing_started_at, last_processed_at, created_at
FROM mailboxes
WHERE claimable_at IS NOT NULL AND processing_status = 'processing'
  AND ($3::text[] IS NULL OR kind = ANY($3))
  AND processing_started_at < clock_timestamp() - make_interval(secs => $1)
ORDER BY processing_started_at
LIMIT $2
