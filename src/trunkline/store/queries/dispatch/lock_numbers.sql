-- Second step of the intent: the numbers it dials from, held against a change of `max_channels` until the commit.
SELECT id, e164, carrier, account, max_channels
FROM numbers
WHERE id = ANY($1::uuid[]) AND status = 'active'
ORDER BY id
FOR SHARE
