-- Forget an endpoint. Its pending deliveries find it gone and end.
DELETE FROM webhook_endpoints WHERE id = $1
