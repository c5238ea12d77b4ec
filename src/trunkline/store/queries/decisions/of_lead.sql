-- Why a lead was not called, newest first.
SELECT reason, subject, times, first_at, last_at, until FROM decisions WHERE lead_id = $1 ORDER BY last_at DESC
