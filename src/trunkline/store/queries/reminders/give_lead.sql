-- The lead of an occurrence, or the reason why there is none.
UPDATE reminder_occurrences
SET lead_id = $2, lead_version = coalesce($3, 0), state = CASE WHEN $2::uuid IS NULL THEN 'FAILED' ELSE state END,
    last_error = $4, updated_at = clock_timestamp()
WHERE id = $1
