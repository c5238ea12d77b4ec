-- What an agent is told of the call it has. A call that came in has no lead.
SELECT a.id AS attempt_id, a.carrier_call_id AS call_id, a.direction, a.carrier, a.to_phone, a.from_phone, a.attempt_no,
       a.reseller_id, a.merchant_id, a.campaign_id, a.lead_id, l.request_id, l.payload, l.max_attempts, l.timezone
FROM attempts AS a
LEFT JOIN leads AS l ON l.id = a.lead_id
WHERE a.id = $1
