-- A call that was given its pod while Postgres was away, and whose agent was lost before that was written down. A later note
-- finds this row and changes nothing of it. $1 attempt  $2 the carrier's call id  $3 the turn of the stream that is over
INSERT INTO allocations (id, has_attempt, call, merchant_id, turn, begun_at)
SELECT t.id, true, $2, t.merchant_id, $3::smallint + 1, clock_timestamp()
FROM attempts AS t
WHERE t.id = $1 AND t.state IN ('dialing', 'in_doubt', 'accepted', 'ringing', 'answered')
ON CONFLICT DO NOTHING
RETURNING NULL::text AS lost_pod, merchant_id
