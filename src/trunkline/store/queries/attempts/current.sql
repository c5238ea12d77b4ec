-- Is this attempt the one its lead is being called with? Asked when a call is answered.
SELECT a.lead_id, a.merchant_id, a.state, a.hang_up_at IS NOT NULL AS hang_up_wanted,
       NOT EXISTS (SELECT FROM attempts AS n WHERE n.lead_id = a.lead_id AND n.intent_at > a.intent_at) AS newest
FROM attempts AS a
WHERE a.id = $1
