-- Change an endpoint. What is null stays as it is; enabling forgets why it was disabled.
UPDATE webhook_endpoints
SET url = coalesce($2, url), event_types = coalesce($3, event_types), status = coalesce($4, status),
    disabled_reason = CASE WHEN $4 = 'active' THEN NULL WHEN $4 = 'disabled' THEN $5 ELSE disabled_reason END,
    updated_at = now()
WHERE id = $1
RETURNING *
