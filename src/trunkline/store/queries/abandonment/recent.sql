-- The last hour of each of these campaigns, newest first: what their answer rates are judged by. The zero id: the merchant's
-- leads without a campaign.
-- $1 merchants, $2 campaigns
SELECT w.merchant_id, w.campaign_id, c.at, c.ended, c.answered, c.by_person, c.abandoned, clock_timestamp() AS now
FROM unnest($1::text[], $2::uuid[]) AS w (merchant_id, campaign_id)
JOIN call_counts AS c ON c.merchant_id = w.merchant_id AND c.campaign_id = w.campaign_id
WHERE c.at > clock_timestamp() - interval '61 minutes'
ORDER BY c.at DESC
