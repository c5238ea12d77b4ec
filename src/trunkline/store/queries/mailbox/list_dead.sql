-- Dead mailboxes of a kind in the order of their keys, after $3: by their own index, which needs the status as it is
-- written there.
SELECT kind, key, processing_status, appended, processed, failures, last_error, locked_by, claimable_at,
       processing_started_at, last_processed_at, created_at
FROM mailboxes
WHERE kind = $1 AND processing_status = $2 AND processing_status = 'dead' AND key > $3
ORDER BY key
LIMIT $4
