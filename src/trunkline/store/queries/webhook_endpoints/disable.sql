-- The receiver said that it is gone. Only once: a later 410 of a job that was already under way changes nothing.
UPDATE webhook_endpoints SET status = 'disabled', disabled_reason = $2, updated_at = now()
WHERE id = $1 AND status = 'active'
RETURNING id
