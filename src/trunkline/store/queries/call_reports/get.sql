SELECT disposition, opt_out, callback_at, transcript_ref, recording_ref, data, reported_at
FROM call_reports
WHERE attempt_id = $1
