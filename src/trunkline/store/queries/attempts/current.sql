-- Is this attempt the one its lead is being called with? Asked when a call is answered.
SELECT a.id, a.lead_id, a.merchant_id, a.state, a.holds_channel, l.status AS lead_status,
       NOT EXISTS (SELECT FROM attempts AS n WHERE n.lead_id = a.lead_id AND n.intent_at > a.intent_at) AS newest
FROM attempts AS a
LEFT JOIN leads AS l ON l.id = a.lead_id
WHERE a.id = $1
