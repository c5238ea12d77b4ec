-- What is in doubt, oldest first, with all that the carrier's call list is asked for.
SELECT id, lead_id, carrier, account, to_phone, from_phone, intent_at,
       extract(epoch FROM clock_timestamp() - send_at)::float8 AS age_s
FROM attempts
WHERE state = 'in_doubt'
ORDER BY intent_at
LIMIT $1
