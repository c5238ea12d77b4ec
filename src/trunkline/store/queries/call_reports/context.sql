-- What an agent is told of the call it has, and what the agents before it had stored. A call that came in has no lead.
SELECT a.id AS attempt_id, a.carrier_call_id AS call_id, a.direction, a.carrier, a.to_phone, a.from_phone, a.attempt_no,
       a.reseller_id, a.merchant_id, a.campaign_id, a.lead_id, l.request_id, l.payload, l.max_attempts, l.timezone,
       coalesce(s.turn, 0) AS turn, c.state
FROM attempts AS a
LEFT JOIN leads AS l ON l.id = a.lead_id
LEFT JOIN allocations AS s ON s.id = a.id
LEFT JOIN call_states AS c ON c.attempt_id = a.id
WHERE a.id = $1
