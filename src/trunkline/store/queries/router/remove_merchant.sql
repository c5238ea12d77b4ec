-- Back to standard.
DELETE FROM router_merchants WHERE merchant_id = $1
