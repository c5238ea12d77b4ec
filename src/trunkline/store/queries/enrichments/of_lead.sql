-- What was found out about the calls of a lead, in the order in which it was asked for.
SELECT e.item_id, e.attempt_id, e.status, e.recording_ref, e.transcript, e.data, e.created_at, e.updated_at
FROM attempts AS a
JOIN call_enrichments AS e ON e.attempt_id = a.id
WHERE a.lead_id = $1
ORDER BY e.created_at, e.item_id
