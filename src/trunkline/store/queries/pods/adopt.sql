-- The first heartbeat of a pod that the cluster told of before, or of one that Valkey has lost: it stays the same.
-- $1 name  $2 boot id  $3 sequence  $4 leaving  $5 named  $6 ip  $7 port  $8 version  $9 base URL  $10 interval
UPDATE pods AS p
SET boot_id = $2, sequence = $3, heard_at = clock_timestamp(), ip = $6, port = $7, version = $8, base_url = $9,
    leaving_since = CASE WHEN $4 THEN coalesce(p.leaving_since, clock_timestamp()) END, interval_s = $10,
    named = ARRAY(SELECT said FROM unnest($5::text[]) AS said WHERE said <> ALL(p.reset_calls))
WHERE p.name = $1
RETURNING incarnation, tier, calls_max, past_boots
