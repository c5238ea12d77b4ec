-- A series that cannot be made, out of the way of those that can. It keeps its place, and somebody may resume it.
UPDATE reminders SET status = 'PAUSED', next_at = NULL, updated_at = clock_timestamp()
WHERE id = $1 AND status = 'ACTIVE'
