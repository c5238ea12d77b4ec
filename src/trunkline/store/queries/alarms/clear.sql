-- It is over.
UPDATE alarms SET cleared_at = clock_timestamp(), cleared_by = $3
WHERE name = $1 AND subject = $2 AND cleared_at IS NULL
RETURNING *
