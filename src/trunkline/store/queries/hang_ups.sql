-- name: claim
-- Calls to be hung up whose carrier has to be asked now. A claim moves the time on, which is the lease: if the process dies,
-- the next one asks after $2 seconds. A call without a call id cannot be asked for yet; one that has ended need not be.
UPDATE attempts AS a
SET hang_up_at = clock_timestamp() + make_interval(secs => $2)
FROM (SELECT id FROM attempts
      WHERE hang_up_at <= clock_timestamp() AND (carrier_call_id IS NOT NULL OR state IN ('ended', 'rejected'))
      ORDER BY hang_up_at LIMIT $1
      FOR NO KEY UPDATE SKIP LOCKED) AS due
WHERE a.id = due.id
RETURNING a.id, a.lead_id, a.carrier, a.account, a.carrier_call_id, a.state

-- name: reschedule
-- When to ask again. NULL: never.
UPDATE attempts AS a
SET hang_up_at = CASE WHEN l.delay_s IS NOT NULL THEN clock_timestamp() + make_interval(secs => l.delay_s) END
FROM (SELECT a.id, l.delay_s
      FROM unnest($1::uuid[], $2::float8[]) AS l (id, delay_s) JOIN attempts AS a ON a.id = l.id
      ORDER BY a.id FOR NO KEY UPDATE OF a) AS l
WHERE a.id = l.id

-- name: request
-- Request the hang-up of the live calls of locked leads: the carrier is asked as soon as the call id is known.
UPDATE attempts AS a
SET hang_up_at = coalesce(a.hang_up_at, clock_timestamp())
FROM (SELECT id FROM attempts
      WHERE lead_id = ANY($1::uuid[]) AND state IN ('dialing', 'in_doubt', 'accepted', 'ringing', 'answered')
      ORDER BY id FOR NO KEY UPDATE) AS live
WHERE a.id = live.id

-- name: request_by_id
-- Request the hang-up of these calls, whatever the state of their attempts.
UPDATE attempts SET hang_up_at = coalesce(hang_up_at, clock_timestamp()) WHERE id = ANY($1::uuid[])
