-- The first report of an agent stands; a second one finds it there. Of two agents of one call the later one's counts: the
-- earlier was lost in the middle of it.
INSERT INTO call_reports AS r (attempt_id, disposition, opt_out, callback_at, transcript_ref, recording_ref, data, turn)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (attempt_id) DO UPDATE
SET disposition = excluded.disposition, opt_out = r.opt_out OR excluded.opt_out, callback_at = excluded.callback_at,
    transcript_ref = excluded.transcript_ref, recording_ref = excluded.recording_ref, data = excluded.data,
    turn = excluded.turn, reported_at = clock_timestamp()
WHERE r.turn < excluded.turn
RETURNING attempt_id
