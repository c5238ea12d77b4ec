-- Occurrences of a series, newest first.
SELECT * FROM reminder_occurrences
WHERE reminder_id = $1 AND wall_at < $2::timestamp
ORDER BY wall_at DESC
LIMIT $3
