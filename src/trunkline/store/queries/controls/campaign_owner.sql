-- The merchant of a campaign, if the tenant may see it: a campaign that was made, or one that only its leads name.
SELECT reseller_id, merchant_id FROM (
    (SELECT 1 AS nth, reseller_id, merchant_id FROM campaigns WHERE id = $3)
    UNION ALL
    (SELECT 2, reseller_id, merchant_id FROM leads
     WHERE campaign_id = $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
     ORDER BY id
     LIMIT 1)
) AS known
WHERE ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
ORDER BY nth
LIMIT 1
