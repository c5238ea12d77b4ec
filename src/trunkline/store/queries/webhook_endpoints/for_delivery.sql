-- What a delivery needs to know of its endpoint, as it is now.
SELECT id, url, status, secret_sealed,
       CASE WHEN old_secret_until > now() THEN old_secret_sealed END AS old_secret_sealed
FROM webhook_endpoints WHERE id = $1
