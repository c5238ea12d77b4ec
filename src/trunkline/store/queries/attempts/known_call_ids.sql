-- Which of these calls already belong to an attempt.
SELECT carrier_call_id FROM attempts WHERE carrier = $1 AND carrier_call_id = ANY($2::text[])
