-- name: complete
-- Store the result, once.
UPDATE call_enrichments
SET status = 'READY', recording_ref = $2, transcript = $3, data = $4, updated_at = now()
WHERE item_id = $1 AND status = 'ENRICHING'
RETURNING item_id

-- name: forget
-- Delete items whose files are gone, unless they were changed meanwhile.
DELETE FROM call_enrichments
WHERE item_id = ANY($1::text[]) AND updated_at < now() - make_interval(secs => $2)

-- name: get
-- An item as it is now.
SELECT item_id, status, source, recording_ref, transcript, data FROM call_enrichments WHERE item_id = $1

-- name: insert
-- Items to be enriched. Existing ones stay as they are.
INSERT INTO call_enrichments (item_id, attempt_id, reseller_id, merchant_id, source)
SELECT * FROM unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::text[]) AS new (item_id)
ORDER BY new.item_id
ON CONFLICT DO NOTHING
RETURNING item_id

-- name: for_attempt
-- The enrichments of a call of a tenant, in the order of their requests.
SELECT item_id, attempt_id, status, recording_ref, transcript, data, created_at, updated_at
FROM call_enrichments
WHERE attempt_id = $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
ORDER BY created_at, item_id

-- name: for_lead
-- The enrichments of the calls of a lead, in the order of their requests.
SELECT e.item_id, e.attempt_id, e.status, e.recording_ref, e.transcript, e.data, e.created_at, e.updated_at
FROM attempts AS a
JOIN call_enrichments AS e ON e.attempt_id = a.id
WHERE a.lead_id = $1
ORDER BY e.created_at, e.item_id

-- name: expired
-- Items past their retention, oldest first, with their files.
SELECT item_id, recording_ref
FROM call_enrichments
WHERE updated_at < now() - make_interval(secs => $1)
ORDER BY updated_at
LIMIT $2
