-- name: delete
-- Back to the default of the code.
DELETE FROM flags WHERE name = $1 RETURNING *

-- name: get
-- One flag, if it is set.
SELECT * FROM flags WHERE name = $1

-- name: list
-- Every flag that is set.
SELECT * FROM flags ORDER BY name

-- name: raise_version
-- Runs before a change, in its transaction: changes queue up here, so versions become visible in their order.
UPDATE control_versions SET flags = flags + 1

-- name: set
-- Set a flag, whole.
INSERT INTO flags AS f (name, enabled, percentage, resellers, merchants, reason, changed_by, version)
SELECT $1, $2, $3, $4, $5, $6, $7, v.flags FROM control_versions AS v
ON CONFLICT (name) DO UPDATE
SET enabled = excluded.enabled,
    percentage = excluded.percentage,
    resellers = excluded.resellers,
    merchants = excluded.merchants,
    reason = excluded.reason,
    changed_by = excluded.changed_by,
    changed_at = clock_timestamp(),
    version = excluded.version
RETURNING *
