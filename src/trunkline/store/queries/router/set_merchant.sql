-- A merchant's tier, as it is from now on.
INSERT INTO router_merchants (merchant_id, config) VALUES ($1, $2)
ON CONFLICT (merchant_id) DO UPDATE SET config = excluded.config, changed_at = clock_timestamp()
