-- Change what was named of a locked campaign. Waiting leads are given it afterwards: see `give`.
-- $2 name  $3 pool  $4 priority  $5 attempts  $6, $7 whether the start was named, and it  $8, $9 likewise the end
-- $10, $11 likewise the webhook
UPDATE campaigns
SET name = coalesce($2, name), pool_id = coalesce($3, pool_id), priority = coalesce($4, priority),
    max_attempts = coalesce($5, max_attempts), starts_at = CASE WHEN $6 THEN $7 ELSE starts_at END,
    ends_at = CASE WHEN $8 THEN $9 ELSE ends_at END,
    reporting_webhook_url = CASE WHEN $10 THEN $11 ELSE reporting_webhook_url END, updated_at = clock_timestamp()
WHERE id = $1
RETURNING *, clock_timestamp() AS now
