-- A lead that is locked and waits is due at once. Its window is not known here, so it is not carried: the dial looks.
UPDATE leads
SET due_at = now(), scheduled_at = least(scheduled_at, now()), closes_at = NULL, version = version + 1, updated_at = now()
WHERE id = $1
RETURNING *
