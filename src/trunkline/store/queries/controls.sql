-- name: campaign_owner
-- The merchant of a campaign, if the tenant may see it: a stored campaign, or one that only its leads name.
SELECT reseller_id, merchant_id FROM (
    (SELECT 1 AS nth, reseller_id, merchant_id FROM campaigns WHERE id = $3)
    UNION ALL
    (SELECT 2, reseller_id, merchant_id FROM leads
     WHERE campaign_id = $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
     ORDER BY id
     LIMIT 1)
) AS known
WHERE ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
ORDER BY nth
LIMIT 1

-- name: forget_over
-- Rows without effect.
DELETE FROM controls WHERE ends_at + make_interval(secs => ramp_s) <= clock_timestamp()

-- name: get
-- The controls of one subject, of every level.
SELECT *, clock_timestamp() AS seen_at FROM controls
WHERE scope = $1 AND subject = $2
  AND (ends_at IS NULL OR ends_at + make_interval(secs => ramp_s) > clock_timestamp())

-- name: in_force
-- Every stop, and every ramp after one.
SELECT *, clock_timestamp() AS seen_at FROM controls
WHERE ends_at IS NULL OR ends_at + make_interval(secs => ramp_s) > clock_timestamp()

-- name: list
-- Controls that affect a tenant or those below it, by scope and subject: its own, its reseller's, the platform's.
SELECT *, clock_timestamp() AS seen_at FROM controls
WHERE concat_ws(' ', scope, subject, set_by) > $3
  AND (ends_at IS NULL OR ends_at + make_interval(secs => ramp_s) > clock_timestamp())
  AND ($1::text IS NULL OR reseller_id IS NULL
       OR (reseller_id = $1 AND ($2::text IS NULL OR merchant_id IS NULL OR merchant_id = $2)))
  AND ($4::text IS NULL OR scope = $4)
ORDER BY concat_ws(' ', scope, subject, set_by)
LIMIT $5

-- name: poll
-- Polled by every process twice a second, in one row: the versions of controls and flags, the database's beat, and its time.
SELECT v.controls AS controls_version, v.flags AS flags_version, c.installation, c.beat, c.beat_at,
       clock_timestamp() AS now
FROM control_versions v CROSS JOIN continuity c

-- name: raise_version
-- Runs before a change, in its transaction: changes queue up here, so versions become visible in their order.
UPDATE control_versions SET controls = controls + 1

-- name: resume
-- End a stop now. Its row stays until the ramp has reached the full pace.
UPDATE controls
SET reason = $4, changed_by = $5, changed_at = clock_timestamp(), ends_at = clock_timestamp(), ramp_s = $6
WHERE scope = $1 AND subject = $2 AND set_by = $3 AND (ends_at IS NULL OR ends_at > clock_timestamp())
RETURNING *, clock_timestamp() AS seen_at

-- name: stop
-- Stop a subject, or change its stop. `stopped_at` stays that of the first stop.
-- The end is a time ($6) or a delay from now ($7), by this server's clock.
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
