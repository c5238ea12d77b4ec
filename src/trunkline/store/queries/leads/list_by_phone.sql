-- Leads to one phone, newest first. One file per leading key: a filter that may be NULL is no use to an index.
SELECT * FROM leads
WHERE phone = $5
  AND id < $7::uuid
  AND ($1::text IS NULL OR reseller_id = $1)
  AND ($2::text IS NULL OR merchant_id = $2)
  AND ($3::text IS NULL OR merchant_id = $3)
  AND ($4::uuid IS NULL OR campaign_id = $4)
  AND status = ANY($6::text[])
ORDER BY id DESC
LIMIT $8
