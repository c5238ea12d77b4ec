-- End a stop now. Its row stays until the subject has grown back to its full pace.
UPDATE controls
SET reason = $4, changed_by = $5, changed_at = clock_timestamp(), ends_at = clock_timestamp(), ramp_s = $6
WHERE scope = $1 AND subject = $2 AND set_by = $3 AND (ends_at IS NULL OR ends_at > clock_timestamp())
RETURNING *, clock_timestamp() AS seen_at
