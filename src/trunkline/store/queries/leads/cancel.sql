-- Locked leads that are being called: they end with this call. The first reason stays.
UPDATE leads
SET cancel_requested_at = coalesce(cancel_requested_at, now()), cancel_reason = coalesce(cancel_reason, $2),
    version = version + 1, updated_at = now()
WHERE id = ANY($1::uuid[]) AND status = 'PROCESSING'
RETURNING *
