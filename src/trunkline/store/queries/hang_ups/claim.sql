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
