-- A pod that nobody knew: it goes to the first tier that has fewer pods than its target, else to standard. Who is leaving
-- fills no target.
-- $1 name  $2 boot id  $3 sequence  $4 leaving  $5 named  $6 ip  $7 port  $8 version  $9 base URL  $10 interval
-- $11 tiers in the order of assignment  $12 targets  $13 maxima  $14 uid  $15 ready
WITH tiers AS (
    SELECT t.tier, t.target, t.most, t.place
    FROM unnest($11::text[], $12::int[], $13::int[]) WITH ORDINALITY AS t (tier, target, most, place)
), lacking AS (
    SELECT t.tier FROM tiers AS t
    WHERE (SELECT count(*) FROM pods AS p WHERE p.tier = t.tier AND p.leaving_since IS NULL) < t.target
    ORDER BY t.place LIMIT 1
), chosen AS (
    SELECT coalesce((SELECT l.tier FROM lacking AS l), 'standard') AS tier
)
INSERT INTO pods (name, tier, calls_max, boot_id, sequence, leaving_since, named, ip, port, version, base_url, interval_s, uid, is_ready)
SELECT $1, c.tier, coalesce((SELECT t.most FROM tiers AS t WHERE t.tier = c.tier), 1), $2, $3,
       CASE WHEN $4 THEN clock_timestamp() END, $5::text[], $6, $7, $8, $9, $10, $14, $15
FROM chosen AS c
ON CONFLICT (name) DO NOTHING
RETURNING incarnation, tier, calls_max, past_boots
