-- Alarms of which the outside has not heard, or not that they are over. Oldest first, each held by one teller.
SELECT * FROM alarms
WHERE raise_told_at IS NULL OR (cleared_at IS NOT NULL AND clear_told_at IS NULL)
ORDER BY id
LIMIT $1
FOR UPDATE SKIP LOCKED
