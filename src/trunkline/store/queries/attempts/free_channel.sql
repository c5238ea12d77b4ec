-- No call of unknown fate can last any longer: its channel is free.
UPDATE attempts SET holds_channel = false, next_check_at = NULL WHERE id = $1 AND state = 'unknown'
RETURNING id
