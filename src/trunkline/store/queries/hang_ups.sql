-- name: claim
-- Calls to be hung up whose request to the carrier is due. A claim moves the time on, which is the lease: if the process dies,
-- the next one sends it after $2 seconds. A call without a call id cannot be hung up yet; one that has ended need not be.
UPDATE attempts AS a
SET hang_up_at = clock_timestamp() + make_interval(secs => $2)
FROM (SELECT id FROM attempts
      WHERE hang_up_at <= clock_timestamp() AND (carrier_call_id IS NOT NULL OR state IN ('ended', 'rejected'))
      ORDER BY hang_up_at LIMIT $1
      FOR NO KEY UPDATE SKIP LOCKED) AS due
WHERE a.id = due.id
RETURNING a.id, a.lead_id, a.carrier, a.account, a.carrier_call_id, a.state

-- name: reschedule
-- When to send the next request. NULL: never.
UPDATE attempts AS a
SET hang_up_at = CASE WHEN l.delay_s IS NOT NULL THEN clock_timestamp() + make_interval(secs => l.delay_s) END
FROM (SELECT a.id, l.delay_s
      FROM unnest($1::uuid[], $2::float8[]) AS l (id, delay_s) JOIN attempts AS a ON a.id = l.id
      ORDER BY a.id FOR NO KEY UPDATE OF a) AS l
WHERE a.id = l.id

-- name: request
-- Request the hang-up of the live calls of locked leads: the loop sends it to the carrier as soon as the call id is known.
UPDATE attempts AS a
SET hang_up_at = coalesce(a.hang_up_at, clock_timestamp())
FROM (SELECT id FROM attempts
      WHERE lead_id = ANY($1::uuid[]) AND state IN ('dialing', 'in_doubt', 'accepted', 'ringing', 'answered')
      ORDER BY id FOR NO KEY UPDATE) AS live
WHERE a.id = live.id

-- name: request_by_id
-- Request the hang-up of these calls, whatever the state of their attempts.
UPDATE attempts SET hang_up_at = coalesce(hang_up_at, clock_timestamp()) WHERE id = ANY($1::uuid[])
