-- The first report of a call stands; a second one finds it there.
INSERT INTO call_reports (attempt_id, disposition, opt_out, callback_at, transcript_ref, recording_ref, data)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (attempt_id) DO NOTHING
RETURNING attempt_id
