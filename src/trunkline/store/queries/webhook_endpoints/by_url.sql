-- A tenant's endpoint by its URL.
SELECT * FROM webhook_endpoints WHERE reseller_id = $1 AND merchant_id IS NOT DISTINCT FROM $2 AND url = $3
