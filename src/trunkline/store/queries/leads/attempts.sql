-- Every attempt to call a lead, in order, with what its agent reported.
SELECT a.*, to_jsonb(r) - 'attempt_id' AS report
FROM attempts AS a
LEFT JOIN call_reports AS r ON r.attempt_id = a.id
WHERE a.lead_id = $1
ORDER BY a.attempt_no, a.intent_at
