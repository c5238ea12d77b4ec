-- name: continue_incarnation
-- The first heartbeat of a pod that Kubernetes reported before, or of one that Valkey has lost: it stays the same.
-- $1 name  $2 boot id  $3 sequence  $4 leaving  $5 named  $6 ip  $7 port  $8 version  $9 base URL  $10 interval  $11 hanging
UPDATE pods AS p
SET boot_id = $2, sequence = $3, heard_at = clock_timestamp(), ip = $6, port = $7, version = $8, base_url = $9,
    leaving_since = CASE WHEN $4 THEN coalesce(p.leaving_since, clock_timestamp()) END, interval_s = $10,
    named = ARRAY(SELECT call FROM unnest($5::text[]) AS call WHERE call <> ALL(p.reset_calls)), hanging = $11::text[]
WHERE p.name = $1
RETURNING incarnation, tier, calls_max, past_boots

-- name: mark_receiving
-- Every router records every second that it receives heartbeats. After a gap, or when the clock ran backwards, silence counts
-- from now on.
UPDATE pod_hearing
SET since = CASE WHEN clock_timestamp() - ran_at > interval '5 seconds' OR ran_at > clock_timestamp() + interval '1 second'
                 THEN clock_timestamp() ELSE least(since, clock_timestamp()) END,
    ran_at = clock_timestamp()

-- name: all
-- Pods for Valkey's pools; of all tiers, or those named ($1, NULL for all).
SELECT p.name, p.incarnation, p.tier, p.calls_max, p.base_url, p.ip, p.port, p.version, p.boot_id, p.past_boots, p.uid, p.sequence,
       p.named, p.hanging, p.reset_calls, p.interval_s, p.is_ready, p.leaving_since IS NOT NULL AS is_leaving,
       p.changing_since IS NOT NULL AS is_changing,
       extract(epoch FROM clock_timestamp() - p.heard_at)::float8 AS unheard_s,
       greatest(0, coalesce(extract(epoch FROM p.draining_until - clock_timestamp()), 0))::float8 AS drain_left_s
FROM pods AS p
WHERE $1::text[] IS NULL OR p.name = ANY($1)
ORDER BY p.name

-- name: attach
-- Attaches a call to the pod that names it, on its lowest free slot.
-- $1 allocation  $2 pod
UPDATE allocations AS a
SET pod = p.name, incarnation = p.incarnation, joined_at = coalesce(a.joined_at, clock_timestamp()),
    source_pool = CASE WHEN p.tier LIKE 'merchant:%' THEN p.tier ELSE 'pool:' || p.tier END,
    slot = (SELECT min(s.slot) FROM generate_series(1, p.calls_max) AS s (slot)
            WHERE NOT EXISTS (SELECT FROM allocations AS l WHERE l.pod = p.name AND l.slot = s.slot AND l.ended_at IS NULL))
FROM pods AS p
WHERE a.id = $1 AND p.name = $2 AND a.ended_at IS NULL AND a.pod IS NULL
  AND EXISTS (SELECT FROM generate_series(1, p.calls_max) AS s (slot)
              WHERE NOT EXISTS (SELECT FROM allocations AS l WHERE l.pod = p.name AND l.slot = s.slot AND l.ended_at IS NULL))
RETURNING a.id

-- name: calls_of
-- The calls that have this pod.
SELECT call FROM allocations WHERE pod = $1 AND ended_at IS NULL AND call IS NOT NULL ORDER BY begun_at

-- name: change
-- Changes pods that took nothing for 2 s, so that no intent in flight is missed. One that changes its tier has no call; one
-- whose maximum is lowered has none above it. $1 names  $2 tiers  $3 maxima
WITH wanted AS (
    SELECT * FROM unnest($1::text[], $2::text[], $3::int[]) AS w (name, tier, calls_max)
), ready AS MATERIALIZED (
    SELECT p.name FROM pods AS p JOIN wanted AS w ON w.name = p.name
    WHERE p.changing_since < clock_timestamp() - interval '2 seconds'
      AND NOT EXISTS (SELECT FROM allocations AS a
                      WHERE a.pod = p.name AND a.ended_at IS NULL AND (p.tier <> w.tier OR a.slot > w.calls_max))
    ORDER BY p.name FOR NO KEY UPDATE OF p
)
UPDATE pods AS p SET tier = w.tier, calls_max = w.calls_max, changing_since = NULL
FROM ready AS r JOIN wanted AS w ON w.name = r.name
WHERE p.name = r.name
RETURNING p.name, p.tier

-- name: drain
-- Keeps new calls away for this many seconds; 0 ends the drain.
UPDATE pods SET draining_until = CASE WHEN $2::float8 > 0 THEN clock_timestamp() + make_interval(secs => $2) END WHERE name = $1

-- name: end_dropped
-- Calls that their pods named and no longer name, of users of the router without an attempt here: their release was lost. The
-- carrier reports the end of an attempt's call: its agent may only have lost the stream.
-- $1 pods  $2 calls
WITH over AS MATERIALIZED (
    SELECT a.id FROM unnest($1::text[], $2::text[]) AS s (pod, call)
    JOIN allocations AS a ON a.call = s.call AND a.pod = s.pod
    WHERE a.ended_at IS NULL AND NOT a.has_attempt
    ORDER BY a.id FOR NO KEY UPDATE OF a
)
UPDATE allocations AS a SET ended_at = clock_timestamp(), why = 'dropped' FROM over AS o WHERE a.id = o.id RETURNING a.id

-- name: end_left
-- Calls without an attempt that their pods took, and have not named for $1 seconds although they sent heartbeats: their
-- release was lost, on the way or with a crash of this server, which does not wait for the disk then. The carrier reports the
-- end of an attempt's call.
WITH over AS MATERIALIZED (
    SELECT a.id
    FROM allocations AS a JOIN pods AS p ON p.name = a.pod AND p.incarnation = a.incarnation
    WHERE a.ended_at IS NULL AND NOT a.has_attempt AND a.joined_at < clock_timestamp() - make_interval(secs => $1)
      AND p.heard_at > a.joined_at + make_interval(secs => $1) AND a.call <> ALL(p.named)
    ORDER BY a.id LIMIT 500
    FOR NO KEY UPDATE OF a SKIP LOCKED
)
UPDATE allocations AS a SET ended_at = clock_timestamp(), why = 'dropped' FROM over AS o WHERE a.id = o.id RETURNING a.id

-- name: end_rows
-- Allocations that an operator ended. In the order of ids. $1 ids  $2 why
WITH over AS MATERIALIZED (
    SELECT id FROM allocations WHERE id = ANY($1::uuid[]) AND ended_at IS NULL ORDER BY id FOR NO KEY UPDATE
)
UPDATE allocations AS a SET ended_at = clock_timestamp(), why = $2 FROM over AS o WHERE a.id = o.id RETURNING a.id

-- name: end_unnamed
-- The allocation of a call that never came: it ends if its carrier reports that the call is over ($2), else it loses its pod
-- and may have another. Only this one, and only while its pod has not named it: since the query to the carrier it may have
-- come.
UPDATE allocations AS a
SET ended_at = CASE WHEN $2 THEN clock_timestamp() END, why = CASE WHEN $2 THEN 'never came' END,
    pod = CASE WHEN $2 THEN a.pod END, slot = CASE WHEN $2 THEN a.slot END, incarnation = CASE WHEN $2 THEN a.incarnation END
WHERE a.id = $1 AND a.pod = $3 AND a.ended_at IS NULL AND a.joined_at IS NULL
  AND NOT EXISTS (SELECT FROM pods AS p WHERE p.name = a.pod AND a.call = ANY(p.named))
RETURNING a.id

-- name: ended_lately
-- Calls that ended within the time of a tombstone, and its remaining seconds. Postgres has them anyway: these are for the time
-- in which it is unavailable.
SELECT a.call, ceil($1 - extract(epoch FROM clock_timestamp() - a.ended_at))::int AS left_s
FROM allocations AS a
WHERE a.ended_at > clock_timestamp() - make_interval(secs => $1) AND a.call IS NOT NULL
ORDER BY a.ended_at DESC LIMIT 20000

-- name: ending
-- Pods that name calls without a live row, and those whose handlers hang.
SELECT p.name AS pod, named.call
FROM pods AS p CROSS JOIN LATERAL unnest(p.named) AS named (call)
WHERE NOT EXISTS (SELECT FROM allocations AS a WHERE a.call = named.call AND a.pod = p.name AND a.ended_at IS NULL)
UNION
SELECT p.name, hangs.call FROM pods AS p CROSS JOIN LATERAL unnest(p.hanging) AS hangs (call)
ORDER BY pod, call LIMIT 1000

-- name: existing
-- Which of these pods exist.
SELECT name FROM pods WHERE name = ANY($1::text[])

-- name: forget_future_heartbeats
-- The clock was set back: a heartbeat from the future counts as now, or a silent pod would not be found until then.
UPDATE pods SET heard_at = clock_timestamp() WHERE heard_at > clock_timestamp() + interval '1 second'

-- name: insert
-- A new pod: it goes to the first tier that has fewer pods than its target, else to standard. A leaving pod fills no target.
-- $1 name  $2 boot id  $3 sequence  $4 leaving  $5 named  $6 ip  $7 port  $8 version  $9 base URL  $10 interval
-- $11 tiers in the order of assignment  $12 targets  $13 maxima  $14 uid  $15 ready  $16 hanging
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
INSERT INTO pods (name, tier, calls_max, boot_id, sequence, leaving_since, named, ip, port, version, base_url, interval_s, uid, is_ready, hanging)
SELECT $1, c.tier, coalesce((SELECT t.most FROM tiers AS t WHERE t.tier = c.tier), 1), $2, $3,
       CASE WHEN $4 THEN clock_timestamp() END, $5::text[], $6, $7, $8, $9, $10, $14, $15, $16::text[]
FROM chosen AS c
ON CONFLICT (name) DO NOTHING
RETURNING incarnation, tier, calls_max, past_boots

-- name: join_calls
-- Calls that their pods name for the first time: an agent has taken their stream. In the order of ids. One that has ended by
-- now had its agent all the same. Returns live calls without a pod that a pod names: it has them, whatever was lost or met
-- another call on its slot on the way.
-- $1 pods  $2 calls
WITH here AS MATERIALIZED (
    SELECT a.id FROM unnest($1::text[], $2::text[]) AS s (pod, call)
    JOIN allocations AS a ON a.call = s.call AND a.pod = s.pod
    WHERE a.joined_at IS NULL
    ORDER BY a.id FOR NO KEY UPDATE OF a
), joined AS (
    UPDATE allocations AS a SET joined_at = clock_timestamp() FROM here AS h WHERE a.id = h.id
)
SELECT a.id, s.pod
FROM unnest($1::text[], $2::text[]) AS s (pod, call)
JOIN allocations AS a ON a.call = s.call AND a.ended_at IS NULL AND a.pod IS NULL
JOIN pods AS p ON p.name = s.pod
ORDER BY a.id

-- name: live_rows
-- Live allocations that have a pod; of all pods, or those named ($1, NULL for all).
SELECT a.id, a.call, a.pod, a.slot, a.incarnation, a.merchant_id, a.source_pool, a.turn,
       extract(epoch FROM coalesce(a.begun_at, a.asked_at))::bigint AS at_s
FROM allocations AS a
WHERE a.ended_at IS NULL AND a.pod IS NOT NULL AND ($1::text[] IS NULL OR a.pod = ANY($1))
ORDER BY a.pod, a.slot

-- name: lock
-- One pod, locked until the transaction ends: two requests of one pod register it once.
SELECT name, incarnation, tier, calls_max, boot_id, past_boots, uid, past_uid, sequence FROM pods WHERE name = $1 FOR NO KEY UPDATE

-- name: lock_gone
-- A pod to be removed: the one that is meant ($2 uid, '' for any), and only without a heartbeat for $3 seconds (0: whatever
-- its last one). One with a newer heartbeat, or another one of the same name, stays.
SELECT incarnation FROM pods
WHERE name = $1 AND ($2 = '' OR uid IN ('', $2))
  AND ($3::float8 = 0 OR heard_at < clock_timestamp() - make_interval(secs => $3))
FOR UPDATE

-- name: lock_tiers
-- Pods that come at the same time fill the tiers one after the other, or all of them would go to the same one.
SELECT pg_advisory_xact_lock(hashtextextended('pods.tiers', 0))

-- name: lose_calls
-- Allocations of earlier incarnations of a pod: calls that the new process names are its own, the others lose their pod and
-- keep their row, for they may get another. Locked in the order of ids, as everywhere.
-- $1 pod  $2 rows of incarnations before this one  $3 calls that the new one names
WITH theirs AS MATERIALIZED (
    SELECT a.id, coalesce(a.call = ANY($3::text[]), false) AS stays
    FROM allocations AS a
    WHERE a.pod = $1 AND a.ended_at IS NULL AND a.incarnation < $2
    ORDER BY a.id FOR NO KEY UPDATE
)
UPDATE allocations AS a
SET pod = CASE WHEN t.stays THEN a.pod END, slot = CASE WHEN t.stays THEN a.slot END,
    incarnation = CASE WHEN t.stays THEN $2::bigint END
FROM theirs AS t WHERE a.id = t.id
RETURNING a.id, a.call, t.stays

-- name: mark_changing
-- Pods that are about to change their tier or their maximum take nothing from now on; others that were, take calls again.
WITH locked AS MATERIALIZED (
    SELECT name FROM pods WHERE (name = ANY($1::text[])) <> (changing_since IS NOT NULL) ORDER BY name FOR NO KEY UPDATE
)
UPDATE pods AS p SET changing_since = CASE WHEN p.name = ANY($1::text[]) THEN clock_timestamp() END
FROM locked AS l WHERE p.name = l.name
RETURNING p.name

-- name: miss
-- A call was assigned to this pod and did not reach its agent.
UPDATE pods SET missed = least(missed + 1, 1000), missed_at = clock_timestamp() WHERE name = $1

-- name: missing
-- Pods at which at least two calls in a row did not reach the agent.
SELECT name FROM pods WHERE missed >= 2 ORDER BY name

-- name: newest_version
-- The version that appeared last.
SELECT version FROM pod_versions ORDER BY appeared_at DESC LIMIT 1

-- name: note_version
-- The first time that this version of the agents is seen; '' is none.
INSERT INTO pod_versions (version) SELECT $1::text WHERE $1 <> '' ON CONFLICT DO NOTHING

-- name: postgres_age
-- Since when this server runs, in seconds. Allocations without a reservation commit without waiting for the disk: those of the
-- last second before a crash may be missing.
SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::float8

-- name: raise_maxima
-- A higher maximum does no harm, so it counts at once. $1 names  $2 maxima
WITH locked AS MATERIALIZED (SELECT name FROM pods WHERE name = ANY($1::text[]) ORDER BY name FOR NO KEY UPDATE)
UPDATE pods AS p SET calls_max = greatest(p.calls_max, w.calls_max)
FROM locked AS l JOIN unnest($1::text[], $2::int[]) AS w (name, calls_max) ON w.name = l.name
WHERE p.name = l.name

-- name: remove
-- A pod that is gone for good: one that comes back under the same name gets a tier as a new one does.
DELETE FROM pods WHERE name = $1

-- name: replace
-- Another process, or another pod of Kubernetes, under a known name: a new incarnation. Reports of the one before it are
-- refused from now on. Its tier and its maximum stay.
-- $1 name  $2 boot id  $3 sequence  $4 leaving  $5 named  $6 ip  $7 port  $8 version  $9 base URL  $10 interval  $11 uid
-- $12 ready  $13 most past boots  $14 hanging
UPDATE pods AS p
SET incarnation = nextval('pod_incarnations'), boot_id = $2,
    past_boots = (array_remove(array_remove(p.past_boots, p.boot_id), $2) || p.boot_id)
                 [greatest(1, cardinality(array_remove(array_remove(p.past_boots, p.boot_id), $2)) + 2 - $13):],
    uid = $11, past_uid = CASE WHEN p.uid <> '' THEN p.uid ELSE p.past_uid END,
    sequence = $3, leaving_since = CASE WHEN $4 THEN clock_timestamp() END, named = $5::text[], hanging = $14::text[], reset_calls = '{}',
    ip = $6, port = $7, version = $8, base_url = $9, interval_s = $10, is_ready = $12, heard_at = clock_timestamp(),
    registered_at = clock_timestamp()
WHERE p.name = $1
RETURNING incarnation, tier, calls_max, past_boots

-- name: reset
-- An operator frees a pod: the calls that it names do not count until it stops naming them. Handlers that hang it has to end
-- itself: until then it refuses what it has no capacity for, whatever is written here.
-- Returns the calls that its last heartbeat named, and those whose handlers hang.
UPDATE pods AS p
SET reset_calls = ARRAY(SELECT DISTINCT call FROM unnest(p.reset_calls || p.named) AS call), named = '{}'
FROM (SELECT name, named, hanging FROM pods WHERE name = $1 FOR NO KEY UPDATE) AS before
WHERE p.name = before.name
RETURNING before.named, before.hanging

-- name: rows_by_id
-- Which of these allocations are live and have a pod.
SELECT a.id, a.call, a.pod, a.slot, a.incarnation, a.merchant_id, a.source_pool, a.turn,
       extract(epoch FROM coalesce(a.begun_at, a.asked_at))::bigint AS at_s
FROM allocations AS a
WHERE a.id = ANY($1::uuid[]) AND a.ended_at IS NULL AND a.pod IS NOT NULL

-- name: seen
-- The rows of these pods, to compare with what Kubernetes reports.
SELECT name, uid, past_uid, is_ready, leaving_since IS NOT NULL AS is_leaving, ip, port, version, boot_id, sequence
FROM pods WHERE name = ANY($1::text[])

-- name: unnamed
-- Calls that were assigned to a pod $1 seconds ago, and that it has not named since: they never came.
SELECT a.id, a.call, a.pod
FROM allocations AS a JOIN pods AS p ON p.name = a.pod AND p.incarnation = a.incarnation
WHERE a.ended_at IS NULL AND a.joined_at IS NULL AND a.call IS NOT NULL
  AND a.begun_at < clock_timestamp() - make_interval(secs => $1)
  AND p.sequence > 0 AND p.heard_at > a.begun_at + make_interval(secs => $1) AND NOT a.call = ANY(p.named)
ORDER BY a.begun_at LIMIT 100

-- name: unreached
-- Calls that were assigned to a pod, which is lost now, after its last heartbeat, and which it never named: they did not reach
-- their agent. Those of a pod that names no calls only if it was late by then. Live ones are marked, for the decision at their
-- end; the ids of ended ones are returned: their end was decided without this.
-- $1 pod
WITH theirs AS MATERIALIZED (
    SELECT a.id
    FROM pods AS p JOIN allocations AS a ON a.pod = p.name AND a.incarnation = p.incarnation
    WHERE p.name = $1 AND a.ended_at IS NULL AND a.joined_at IS NULL AND a.begun_at > p.heard_at
      AND (p.names_calls OR a.begun_at > p.heard_at + make_interval(secs => p.interval_s))
    ORDER BY a.id FOR NO KEY UPDATE OF a
), marked AS (
    UPDATE allocations AS a
    SET lost_pods = array_append(a.lost_pods, $1), lost_at = coalesce(a.lost_at, clock_timestamp())
    FROM theirs AS t WHERE a.id = t.id
)
SELECT a.id
FROM pods AS p JOIN allocations AS a ON a.pod = p.name AND a.incarnation = p.incarnation
WHERE p.name = $1 AND a.has_attempt AND a.ended_at > p.heard_at AND a.joined_at IS NULL AND a.begun_at > p.heard_at
  AND (p.names_calls OR a.begun_at > p.heard_at + make_interval(secs => p.interval_s))
ORDER BY a.id LIMIT 1000

-- name: update_seen
-- What Kubernetes reports of a pod. Whether a pod with heartbeats leaves it reports itself, unless Kubernetes deletes it; its
-- own address and version count too. A successor of the same name does not inherit a drain.
-- $1 name  $2 uid  $3 ready  $4 being deleted  $5 ip  $6 port  $7 version
UPDATE pods AS p
SET draining_until = CASE WHEN p.uid = '' AND p.past_uid NOT IN ('', $2) THEN NULL ELSE p.draining_until END,
    uid = CASE WHEN p.uid = '' AND p.past_uid = $2 THEN '' ELSE $2 END,
    is_ready = $3,
    leaving_since = CASE WHEN $4 THEN coalesce(p.leaving_since, clock_timestamp()) WHEN p.sequence = 0 THEN NULL ELSE p.leaving_since END,
    ip = CASE WHEN $5 <> '' AND (p.sequence = 0 OR p.ip = '') THEN $5 ELSE p.ip END,
    port = CASE WHEN $6 <> 0 AND (p.sequence = 0 OR p.port = 0) THEN $6 ELSE p.port END,
    version = CASE WHEN $7 <> '' AND (p.sequence = 0 OR p.version = '') THEN $7 ELSE p.version END
WHERE p.name = $1

-- name: versions_gone
-- A version without a pod is deleted after ten minutes: when it comes back, it appears anew.
DELETE FROM pod_versions AS v
WHERE v.appeared_at < clock_timestamp() - interval '10 minutes' AND NOT EXISTS (SELECT FROM pods AS p WHERE p.version = v.version)

-- name: write_beats
-- Heartbeats, many at a time: of the same incarnation and not overtaken. In the order of names, so that two processes never
-- wait for each other. No indexed column changes.
-- $1 names  $2 incarnations  $3 sequences  $4 leaving  $5 named calls, separated by spaces  $6 ip  $7 port  $8 version
-- $9 base URL  $10 interval  $11 hanging calls, separated by spaces
WITH beats AS (
    SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bool[], $5::text[], $6::text[], $7::int[], $8::text[],
                         $9::text[], $10::float8[], $11::text[])
        AS b (name, incarnation, sequence, leaving, named, ip, port, version, base_url, interval_s, hanging)
), locked AS MATERIALIZED (
    SELECT p.name FROM pods AS p JOIN beats AS b ON b.name = p.name ORDER BY p.name FOR NO KEY UPDATE OF p
)
UPDATE pods AS p
SET sequence = b.sequence, heard_at = clock_timestamp(), ip = b.ip, port = b.port, version = b.version, base_url = b.base_url,
    interval_s = b.interval_s, hanging = string_to_array(b.hanging, ' '),
    -- It names a call, so it takes streams.
    missed = CASE WHEN b.named <> '' THEN 0 ELSE p.missed END, names_calls = p.names_calls OR b.named <> '',
    leaving_since = CASE WHEN b.leaving THEN coalesce(p.leaving_since, clock_timestamp()) END,
    named = ARRAY(SELECT call FROM unnest(string_to_array(b.named, ' ')) AS call WHERE call <> ALL(p.reset_calls)),
    -- What it no longer names it has released, and may have again.
    reset_calls = CASE WHEN p.reset_calls = '{}' THEN p.reset_calls
                       ELSE ARRAY(SELECT r FROM unnest(p.reset_calls) AS r WHERE r = ANY(string_to_array(b.named, ' '))) END
FROM locked AS l JOIN beats AS b ON b.name = l.name
WHERE p.name = l.name AND p.incarnation = b.incarnation AND p.sequence < b.sequence
