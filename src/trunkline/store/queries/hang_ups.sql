-- name: claim
-- Calls that shall end and whose carrier has to be asked now. Taking one pushes its moment on, which is the lease: if the
-- asker dies, the next one comes by after $2 seconds. A call that nobody knows yet has no id to ask for; one that is over
-- needs none.
UPDATE attempts AS a
SET hang_up_at = clock_timestamp() + make_interval(secs => $2)
FROM (SELECT id FROM attempts
      WHERE hang_up_at <= clock_timestamp() AND (carrier_call_id IS NOT NULL OR state IN ('ended', 'rejected'))
      ORDER BY hang_up_at LIMIT $1
      FOR NO KEY UPDATE SKIP LOCKED) AS due
WHERE a.id = due.id
RETURNING a.id, a.lead_id, a.carrier, a.account, a.carrier_call_id, a.state

-- name: later
-- When to ask again. NULL: there is nothing left to ask for.
UPDATE attempts AS a
SET hang_up_at = CASE WHEN l.delay_s IS NOT NULL THEN clock_timestamp() + make_interval(secs => l.delay_s) END
FROM (SELECT a.id, l.delay_s
      FROM unnest($1::uuid[], $2::float8[]) AS l (id, delay_s) JOIN attempts AS a ON a.id = l.id
      ORDER BY a.id FOR NO KEY UPDATE OF a) AS l
WHERE a.id = l.id

-- name: want
-- The live calls of leads that are locked shall end: the carrier is asked as soon as it is known which call it is.
UPDATE attempts AS a
SET hang_up_at = coalesce(a.hang_up_at, clock_timestamp())
FROM (SELECT id FROM attempts
      WHERE lead_id = ANY($1::uuid[]) AND state IN ('dialing', 'in_doubt', 'accepted', 'ringing', 'answered')
      ORDER BY id FOR NO KEY UPDATE) AS live
WHERE a.id = live.id

-- name: want_by_id
-- These calls shall end, whatever became of their attempts.
UPDATE attempts SET hang_up_at = coalesce(hang_up_at, clock_timestamp()) WHERE id = ANY($1::uuid[])
