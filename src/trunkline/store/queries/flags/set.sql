-- A flag as it is from now on, whole.
INSERT INTO flags AS f (name, enabled, percentage, resellers, merchants, reason, changed_by)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (name) DO UPDATE
SET enabled = excluded.enabled,
    percentage = excluded.percentage,
    resellers = excluded.resellers,
    merchants = excluded.merchants,
    reason = excluded.reason,
    changed_by = excluded.changed_by,
    changed_at = clock_timestamp()
RETURNING *
