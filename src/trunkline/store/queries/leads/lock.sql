-- Leads of the tenant, held in id order until the transaction ends. A dialer passes over a lead that is held.
SELECT * FROM leads
WHERE id = ANY($3::uuid[]) AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
ORDER BY id
FOR NO KEY UPDATE
