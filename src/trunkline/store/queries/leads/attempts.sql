-- Every attempt to call a lead, in order.
SELECT * FROM attempts WHERE lead_id = $1 ORDER BY attempt_no, intent_at
