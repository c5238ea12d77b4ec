-- The merchant whose leads are in a campaign, if the tenant may see one of them.
SELECT reseller_id, merchant_id FROM leads
WHERE campaign_id = $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
ORDER BY id
LIMIT 1
