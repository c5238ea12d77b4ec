-- An occurrence, once. No row: it was made or skipped before.
INSERT INTO reminder_occurrences
    (id, reminder_id, wall_at, scheduled_at, state, skip_reason, max_attempts, last_error)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (reminder_id, wall_at) DO NOTHING
RETURNING id
