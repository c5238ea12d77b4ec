-- Calls that should be over by now: no call outlives its ring time-out and time limit. They are closed only after
-- the carrier was asked.
SELECT id, lead_id, carrier, account, carrier_call_id
FROM attempts
WHERE state IN ('accepted', 'ringing', 'answered') AND carrier_call_id IS NOT NULL
  AND send_at < clock_timestamp() - make_interval(secs => $1)
ORDER BY send_at
LIMIT $2
