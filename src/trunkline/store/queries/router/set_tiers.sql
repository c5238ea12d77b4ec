-- The tiers of pods as they are now.
INSERT INTO router_pods AS p (name, tier)
SELECT name, tier FROM unnest($1::text[], $2::text[]) AS n (name, tier) ORDER BY name
ON CONFLICT (name) DO UPDATE SET tier = excluded.tier, changed_at = clock_timestamp()
WHERE p.tier <> excluded.tier
