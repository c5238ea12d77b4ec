-- Stop a subject, or change the stop it is under. It has been stopped since it was first stopped.
-- The end is a moment ($6) or a time from now ($7), by this server's clock.
INSERT INTO controls AS c (scope, subject, set_by, reason, changed_by, ends_at, ramp_s, reseller_id, merchant_id)
VALUES ($1, $2, $3, $4, $5, coalesce($6, clock_timestamp() + make_interval(secs => $7)), $8, $9, $10)
ON CONFLICT (scope, subject, set_by) DO UPDATE
SET reason = excluded.reason,
    changed_by = excluded.changed_by,
    changed_at = clock_timestamp(),
    stopped_at = CASE WHEN c.ends_at <= clock_timestamp() THEN clock_timestamp() ELSE c.stopped_at END,
    ends_at = excluded.ends_at,
    ramp_s = excluded.ramp_s,
    reseller_id = excluded.reseller_id,
    merchant_id = excluded.merchant_id
RETURNING *, clock_timestamp() AS seen_at
