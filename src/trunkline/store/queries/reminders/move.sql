-- Where a locked series has come to, and whether it goes on.
UPDATE reminders
SET status = $2, ended_reason = $3, next_wall = $4, next_at = $5, next_no = $6, last_at = $7,
    updated_at = clock_timestamp()
WHERE id = $1
RETURNING *, clock_timestamp() AS now
