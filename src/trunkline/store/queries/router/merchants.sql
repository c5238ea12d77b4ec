-- Every merchant that has a tier of its own.
SELECT merchant_id, config FROM router_merchants ORDER BY merchant_id
