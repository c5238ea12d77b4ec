-- One mailbox.
SELECT kind, key, processing_status, appended, processed, failures, last_error, locked_by, claimable_at,
       processing_started_at, last_processed_at, created_at
FROM mailboxes
WHERE kind = $1 AND key = $2
