-- Heartbeats, many at a time: of the same incarnation and not overtaken. In the order of names, so that two processes never
-- wait for each other. No indexed column changes.
-- $1 names  $2 incarnations  $3 sequences  $4 leaving  $5 named calls, separated by spaces  $6 ip  $7 port  $8 version
-- $9 base URL  $10 interval
WITH beats AS (
    SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bool[], $5::text[], $6::text[], $7::int[], $8::text[],
                         $9::text[], $10::float8[])
        AS b (name, incarnation, sequence, leaving, named, ip, port, version, base_url, interval_s)
), locked AS MATERIALIZED (
    SELECT p.name FROM pods AS p JOIN beats AS b ON b.name = p.name ORDER BY p.name FOR NO KEY UPDATE OF p
)
UPDATE pods AS p
SET sequence = b.sequence, heard_at = clock_timestamp(), ip = b.ip, port = b.port, version = b.version, base_url = b.base_url,
    interval_s = b.interval_s,
    -- It names a call, so it takes streams.
    missed = CASE WHEN b.named <> '' THEN 0 ELSE p.missed END,
    leaving_since = CASE WHEN b.leaving THEN coalesce(p.leaving_since, clock_timestamp()) END,
    named = ARRAY(SELECT said FROM unnest(string_to_array(b.named, ' ')) AS said WHERE said <> ALL(p.reset_calls)),
    -- What it does not name any more it has let go of, and may have again.
    reset_calls = CASE WHEN p.reset_calls = '{}' THEN p.reset_calls
                       ELSE ARRAY(SELECT r FROM unnest(p.reset_calls) AS r WHERE r = ANY(string_to_array(b.named, ' '))) END
FROM locked AS l JOIN beats AS b ON b.name = l.name
WHERE p.name = l.name AND p.incarnation = b.incarnation AND p.sequence < b.sequence
