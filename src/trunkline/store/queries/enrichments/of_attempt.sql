-- What was found out about a call of a tenant, in the order in which it was asked for.
SELECT item_id, attempt_id, status, recording_ref, transcript, data, created_at, updated_at
FROM call_enrichments
WHERE attempt_id = $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
ORDER BY created_at, item_id
