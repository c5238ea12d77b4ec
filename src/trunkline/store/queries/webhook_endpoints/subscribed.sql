-- Who wants to hear of an event: active endpoints of the merchant and of its reseller.
SELECT id FROM webhook_endpoints
WHERE reseller_id = $1 AND (merchant_id IS NULL OR merchant_id = $2) AND status = 'active'
  AND event_types && ARRAY['*', $3]
ORDER BY id
