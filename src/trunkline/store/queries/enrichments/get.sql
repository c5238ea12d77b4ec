-- An item as it is now.
SELECT item_id, status, source, recording_ref, transcript, data FROM call_enrichments WHERE item_id = $1
