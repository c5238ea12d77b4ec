-- A heartbeat: the pod's number, which is new with every process of its name, and what the pod says of itself.
-- $1 name  $2 boot id  $3 sequence  $4 base URL  $5 ip  $6 port  $7 version  $8 calls that it names  $9 whether it is leaving
INSERT INTO pods AS p (name, tier, boot_id, sequence, base_url, ip, port, version, named, leaving_since)
VALUES ($1, 'standard', $2, $3, $4, $5, $6, $7, $8::text[], CASE WHEN $9 THEN clock_timestamp() END)
ON CONFLICT (name) DO UPDATE
SET incarnation = CASE WHEN p.boot_id = excluded.boot_id THEN p.incarnation ELSE excluded.incarnation END,
    boot_id = excluded.boot_id, sequence = excluded.sequence, base_url = excluded.base_url, ip = excluded.ip,
    port = excluded.port, version = excluded.version, named = excluded.named, heard_at = clock_timestamp(),
    leaving_since = CASE WHEN $9 THEN coalesce(p.leaving_since, clock_timestamp()) END
RETURNING incarnation, tier, calls_max
