-- The tiers that these merchants have of their own, as JSON. The others have none.
SELECT merchant_id, config FROM router_merchants WHERE merchant_id = ANY($1::text[])
