-- name: context
-- The context of a call for its agent, and the state that earlier agents of it stored. An inbound call has no lead.
SELECT a.id AS attempt_id, a.carrier_call_id AS call_id, a.direction, a.carrier, a.to_phone, a.from_phone, a.attempt_no,
       a.reseller_id, a.merchant_id, a.campaign_id, a.lead_id, l.request_id, l.payload, l.max_attempts, l.timezone,
       coalesce(s.turn, 0) AS turn, c.state
FROM attempts AS a
LEFT JOIN leads AS l ON l.id = a.lead_id
LEFT JOIN allocations AS s ON s.id = a.id
LEFT JOIN call_states AS c ON c.attempt_id = a.id
WHERE a.id = $1

-- name: get
-- The report on a call, to distinguish a repeated report from another one.
SELECT disposition, opt_out, callback_at, transcript_ref, recording_ref, data
FROM call_reports
WHERE attempt_id = $1

-- name: insert
-- The first report of an agent stays; a second one conflicts with it. Of two agents of one call the later one's counts: the
-- earlier was lost during the call.
INSERT INTO call_reports AS r (attempt_id, reseller_id, merchant_id, disposition, opt_out, callback_at, transcript_ref,
                               recording_ref, data, turn)
SELECT a.id, a.reseller_id, a.merchant_id, $2, $3, $4, $5, $6, $7, $8 FROM attempts AS a WHERE a.id = $1
ON CONFLICT (attempt_id) DO UPDATE
SET disposition = excluded.disposition, opt_out = r.opt_out OR excluded.opt_out, callback_at = excluded.callback_at,
    transcript_ref = excluded.transcript_ref, recording_ref = excluded.recording_ref, data = excluded.data,
    turn = excluded.turn, reported_at = clock_timestamp()
WHERE r.turn < excluded.turn
RETURNING attempt_id

-- name: join
-- An agent reads the context of its call or reports on it: so it took the call. Only the first time is written.
UPDATE allocations SET joined_at = clock_timestamp() WHERE id = $1 AND joined_at IS NULL

-- name: add_recordings
-- The addresses of recordings, each once.
INSERT INTO call_recordings (attempt_id, reseller_id, merchant_id, ref)
SELECT a.id, a.reseller_id, a.merchant_id, r.ref
FROM unnest($1::uuid[], $2::text[]) AS r (attempt_id, ref) JOIN attempts AS a ON a.id = r.attempt_id
ORDER BY a.id, r.ref
ON CONFLICT DO NOTHING

-- name: save_state
-- The last state that the agent of a call stored. An agent that lost the call to another one stores nothing: it would
-- overwrite the other one's. $1 attempt  $2 its turn  $3 the state
INSERT INTO call_states AS c (attempt_id, reseller_id, merchant_id, turn, state)
SELECT a.id, a.reseller_id, a.merchant_id, $2, $3
FROM attempts AS a
WHERE a.id = $1 AND NOT EXISTS (SELECT FROM allocations AS l WHERE l.id = a.id AND l.turn > $2)
ON CONFLICT (attempt_id) DO UPDATE
SET turn = excluded.turn, state = excluded.state, saved_at = clock_timestamp()
WHERE c.turn <= excluded.turn
RETURNING attempt_id
