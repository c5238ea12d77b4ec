-- The last stream that a call may have is over and nobody has released it: no further agent is looked for.
-- $1 attempt  $2 the carrier's call id  $3 the turn of the stream that is over
UPDATE allocations SET ended_at = clock_timestamp(), why = 'agents_lost'
WHERE id = $1 AND call = $2 AND turn <= $3 AND ended_at IS NULL
RETURNING pod AS lost_pod, merchant_id
