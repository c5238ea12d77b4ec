-- Every attempt to call a lead, in order, with what its agent reported and where its recordings are.
SELECT a.*, to_jsonb(r) - 'attempt_id' AS report,
       ARRAY(SELECT c.ref FROM call_recordings AS c WHERE c.attempt_id = a.id ORDER BY c.kept_at, c.ref) AS recordings
FROM attempts AS a
LEFT JOIN call_reports AS r ON r.attempt_id = a.id
WHERE a.lead_id = $1
ORDER BY a.attempt_no, a.intent_at
