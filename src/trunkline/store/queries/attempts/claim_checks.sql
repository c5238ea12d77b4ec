-- Attempts that somebody should look at now. Taking one pushes its moment on, which is the lease: if the looker dies,
-- the next one comes by after $2 seconds. Accounts that are slow to answer are left out: others do not wait for them.
UPDATE attempts AS a
SET next_check_at = clock_timestamp() + make_interval(secs => $2)
FROM (SELECT id FROM attempts
      WHERE holds_channel AND next_check_at <= clock_timestamp()
        AND (carrier, account) NOT IN (SELECT * FROM unnest($3::text[], $4::text[]))
      ORDER BY next_check_at LIMIT $1
      FOR NO KEY UPDATE SKIP LOCKED) AS due
WHERE a.id = due.id
RETURNING a.id, a.lead_id, a.state, a.carrier, a.account, a.carrier_call_id, a.to_phone, a.from_phone, a.intent_at,
          a.doubt_checks,
          -- Whether it would ring outside of its window, if it still waits at the carrier.
          coalesce((SELECT l.closes_at <= clock_timestamp() FROM leads AS l WHERE l.id = a.lead_id), false) AS is_closed,
          extract(epoch FROM clock_timestamp() - a.send_at)::float8 AS age_s
