-- Occurrences whose leads were ended before they rang.
UPDATE reminder_occurrences
SET state = 'SKIPPED', skip_reason = $2, next_retry_at = NULL, updated_at = clock_timestamp()
WHERE lead_id = ANY ($1::uuid[]) AND state IN ('SCHEDULED', 'PENDING_RETRY')
RETURNING id
