-- Mailboxes of a kind in the order of their keys, after $3.
SELECT kind, key, processing_status, appended, processed, failures, last_error, locked_by, claimable_at,
       processing_started_at, last_processed_at, created_at
FROM mailboxes
WHERE kind = $1 AND ($2::text IS NULL OR processing_status = $2) AND key > $3
ORDER BY key
LIMIT $4
