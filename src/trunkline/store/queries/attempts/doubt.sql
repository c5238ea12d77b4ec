-- Nobody knows whether these were dialled: their request should long have been answered. They keep their channel.
UPDATE attempts
SET state = 'in_doubt', end_reason = 'no_reply', next_check_at = clock_timestamp()
WHERE id = ANY($1::uuid[]) AND state = 'dialing'
RETURNING id
