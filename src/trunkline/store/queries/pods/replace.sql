-- Another process, or another pod of the cluster, under a name that is known: a new incarnation. What the one before it says
-- from now on counts for nothing. Its tier and its maximum stay.
-- $1 name  $2 boot id  $3 sequence  $4 leaving  $5 named  $6 ip  $7 port  $8 version  $9 base URL  $10 interval  $11 uid
-- $12 ready  $13 most past boots
UPDATE pods AS p
SET incarnation = nextval('pod_incarnations'), boot_id = $2,
    past_boots = (array_remove(array_remove(p.past_boots, p.boot_id), $2) || p.boot_id)
                 [greatest(1, cardinality(array_remove(array_remove(p.past_boots, p.boot_id), $2)) + 2 - $13):],
    uid = $11, past_uid = CASE WHEN p.uid <> '' THEN p.uid ELSE p.past_uid END,
    sequence = $3, leaving_since = CASE WHEN $4 THEN clock_timestamp() END, named = $5::text[], reset_calls = '{}',
    ip = $6, port = $7, version = $8, base_url = $9, interval_s = $10, is_ready = $12, heard_at = clock_timestamp(),
    registered_at = clock_timestamp()
WHERE p.name = $1
RETURNING incarnation, tier, calls_max, past_boots
