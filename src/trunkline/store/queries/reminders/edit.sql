-- What is said and how often it is tried, from the next occurrence on. What is NULL stays as it is.
UPDATE reminders
SET message = coalesce($2, message), assistant_id = coalesce($3, assistant_id), payload = coalesce($4, payload),
    priority = coalesce($5, priority), max_attempts = coalesce($6, max_attempts), late_s = coalesce($7, late_s),
    updated_at = clock_timestamp()
WHERE id = $1
RETURNING *, clock_timestamp() AS now
