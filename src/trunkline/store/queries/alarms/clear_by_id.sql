-- Somebody says that it is over.
UPDATE alarms SET cleared_at = clock_timestamp(), cleared_by = $2 WHERE id = $1 AND cleared_at IS NULL RETURNING *
