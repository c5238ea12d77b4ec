-- Change what was named of a lead that is locked and waits. The new version makes every older grant and entry stale.
-- $2 priority  $3 pool  $4 payload  $5 attempts  $6, $7 webhook and whether it was named
-- $8 whether it is scheduled anew, $9 when it is wanted, $10 when it is due, $11 when its window closes
UPDATE leads
SET priority              = coalesce($2, priority),
    pool_id               = coalesce($3, pool_id),
    payload               = coalesce($4, payload),
    max_attempts          = coalesce($5, max_attempts),
    reporting_webhook_url = CASE WHEN $7 THEN $6 ELSE reporting_webhook_url END,
    scheduled_at          = CASE WHEN $8 THEN greatest($9, now()) ELSE scheduled_at END,
    due_at                = CASE WHEN $8 THEN greatest(coalesce($10, $9), now()) ELSE due_at END,
    closes_at             = CASE WHEN $8 THEN $11 ELSE closes_at END,
    version               = version + 1,
    updated_at            = now()
WHERE id = $1
RETURNING *
