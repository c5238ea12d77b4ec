-- What was reported of a call, to tell a repeated report from another one.
SELECT disposition, opt_out, callback_at, transcript_ref, recording_ref, data
FROM call_reports
WHERE attempt_id = $1
