-- Campaigns of a tenant, newest first.
SELECT *, clock_timestamp() AS now FROM campaigns
WHERE id < $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
  AND ($4::text IS NULL OR merchant_id = $4) AND ($5::text IS NULL OR status = $5)
ORDER BY id DESC
LIMIT $6
