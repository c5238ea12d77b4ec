-- Who truly holds a channel, and for which flow.
SELECT a.id, a.number_id, a.channel_no, a.lead_id, l.pool_id, l.reseller_id, l.merchant_id, l.campaign_id
FROM attempts AS a LEFT JOIN leads AS l ON l.id = a.lead_id
WHERE a.holds_channel
