-- All leads have what was edited.
UPDATE campaigns
SET given_pool_id = pool_id, given_priority = priority, given_max_attempts = max_attempts
WHERE id = $1
