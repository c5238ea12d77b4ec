-- Leads of the whole platform, newest first.
SELECT * FROM leads
WHERE true
  AND id < $7::uuid
  AND ($1::text IS NULL OR reseller_id = $1)
  AND ($2::text IS NULL OR merchant_id = $2)
  AND ($3::text IS NULL OR merchant_id = $3)
  AND ($4::uuid IS NULL OR campaign_id = $4)
  AND ($5::text IS NULL OR phone = $5)
  AND status = ANY($6::text[])
ORDER BY id DESC
LIMIT $8
