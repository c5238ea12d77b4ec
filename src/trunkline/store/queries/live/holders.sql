-- Who holds the channels of a number. On a number that is not the tenant's own, only the tenant's own calls are told.
SELECT a.channel_no, a.id AS attempt_id, a.lead_id, a.direction, a.merchant_id, a.to_phone, a.from_phone, a.state,
       a.carrier_call_id, a.intent_at AS held_since, a.answered_at, a.pod
FROM attempts AS a
WHERE a.number_id = $3 AND a.holds_channel
  AND ($1::text IS NULL OR a.reseller_id = $1) AND ($2::text IS NULL OR a.merchant_id = $2)
ORDER BY a.channel_no
