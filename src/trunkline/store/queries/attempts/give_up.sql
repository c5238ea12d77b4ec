-- The end of doubt without a call: `absent` frees the channel at once, `unknown` keeps it for as long as a call that was
-- placed after all could last ($4 seconds). Guarded by the state: a webhook that came meanwhile wins.
UPDATE attempts
SET state = $2, end_reason = $3, ended_at = clock_timestamp(), holds_channel = $2 = 'unknown',
    next_check_at = CASE WHEN $2 = 'unknown' THEN clock_timestamp() + make_interval(secs => $4) END
WHERE id = $1 AND state = 'in_doubt'
RETURNING id
