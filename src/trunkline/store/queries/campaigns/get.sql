-- A campaign that the tenant may see.
SELECT *, clock_timestamp() AS now FROM campaigns
WHERE id = $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
