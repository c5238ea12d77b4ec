-- Keep what was found, once.
UPDATE call_enrichments
SET status = 'READY', recording_ref = $2, transcript = $3, data = $4, updated_at = now()
WHERE item_id = $1 AND status = 'ENRICHING'
RETURNING item_id
