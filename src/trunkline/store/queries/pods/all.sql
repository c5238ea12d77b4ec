-- Pods as Valkey's pools show them; of all tiers, or those named ($1, NULL for all).
SELECT p.name, p.incarnation, p.tier, p.calls_max, p.base_url, p.ip, p.port, p.version, p.boot_id, p.past_boots, p.uid, p.sequence,
       p.named, p.reset_calls, p.interval_s, p.is_ready, p.leaving_since IS NOT NULL AS is_leaving,
       p.changing_since IS NOT NULL AS is_changing,
       extract(epoch FROM clock_timestamp() - p.heard_at)::float8 AS unheard_s,
       greatest(0, coalesce(extract(epoch FROM p.draining_until - clock_timestamp()), 0))::float8 AS drain_left_s
FROM pods AS p
WHERE $1::text[] IS NULL OR p.name = ANY($1)
ORDER BY p.name
