-- name: addresses
-- The addresses of all pods, and the transaction from which on later changes are found.
SELECT s.oldest_running, p.incarnation, p.name, p.base_url, p.ip, p.port, CASE WHEN p.sequence > 0 THEN p.interval_s END AS interval_s
FROM (SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS oldest_running) AS s LEFT JOIN pods AS p ON true

-- name: addresses_since
-- The addresses of pods that got a number or an address since the last read. $1 the oldest transaction that ran then: what was
-- committed later is not below it. What ran during both reads is found twice. A row above every transaction of this server was
-- restored from another one: it would be found each time.
SELECT s.oldest_running, p.incarnation, p.name, p.base_url, p.ip, p.port, CASE WHEN p.sequence > 0 THEN p.interval_s END AS interval_s
FROM (SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS oldest_running) AS s
LEFT JOIN pods AS p ON p.addressed_xid >= $1::text::xid8 AND p.addressed_xid < pg_snapshot_xmax(pg_current_snapshot())

-- name: allocate
-- The function says how a call without a reservation gets its pod, and in which order it locks.
SELECT * FROM allocate_call($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)

-- name: allocate_new
-- The function says which calls this gives their pods.
SELECT * FROM allocate_new_calls($1::uuid[], $2::text[], $3::text[], $4::text[], $5::int[], $6::bigint[])

-- name: begin
-- A call with a reserved agent was answered: gate and allocation in one compare-and-set. A transaction that ends, writes off
-- or cancels the attempt also ends its row, so a live row means that the attempt is current. A row of an older incarnation
-- counts as lost. $1 attempt  $2 the carrier's call id
UPDATE allocations AS a
SET call = $2, begun_at = coalesce(a.begun_at, clock_timestamp())
FROM pods AS p
WHERE a.id = $1 AND a.ended_at IS NULL AND (a.call IS NULL OR a.call = $2)
  AND p.name = a.pod AND p.incarnation = a.incarnation
RETURNING a.id, a.pod, a.slot, a.incarnation, a.source_pool, p.base_url, a.turn, a.merchant_id

-- name: drop
-- Slots of attempts that were not inserted: in the same transaction, so no other one saw them.
DELETE FROM allocations WHERE id = ANY($1::uuid[])

-- name: end_doubts
-- A dial in doubt keeps its slot until nothing can ring any more: $1 seconds after it should have been sent.
UPDATE allocations AS a SET ended_at = clock_timestamp(), why = 'doubt'
FROM (SELECT l.id FROM attempts AS t JOIN allocations AS l ON l.id = t.id
      WHERE t.state = 'in_doubt' AND t.send_at < clock_timestamp() - make_interval(secs => $1)
        AND l.ended_at IS NULL AND l.begun_at IS NULL
      ORDER BY l.id FOR NO KEY UPDATE OF l SKIP LOCKED LIMIT 500) AS over
WHERE a.id = over.id
RETURNING a.id, a.pod

-- name: end_strays
-- Slots of dials that are over or never were: nothing should leave one behind, so each raises an alarm. 10 s: an intent
-- commits its attempt and its slot together, and a note of an answer may come before the attempt is visible.
UPDATE allocations AS a SET ended_at = clock_timestamp(), why = 'stray'
FROM (SELECT l.id FROM allocations AS l
      WHERE l.ended_at IS NULL AND l.has_attempt AND l.asked_at < clock_timestamp() - interval '10 seconds'
        AND NOT EXISTS (SELECT FROM attempts AS t
                        WHERE t.id = l.id AND t.state IN ('dialing', 'in_doubt', 'accepted', 'ringing', 'answered'))
      ORDER BY l.id FOR NO KEY UPDATE OF l SKIP LOCKED LIMIT 500) AS over
WHERE a.id = over.id
RETURNING a.id, a.pod

-- name: exhaust
-- The last stream that a call may have is over and its allocation was not released: no further agent is searched.
-- $1 attempt  $2 the carrier's call id  $3 the turn of the stream that is over
UPDATE allocations SET ended_at = clock_timestamp(), why = 'agents_lost'
WHERE id = $1 AND call = $2 AND turn <= $3 AND ended_at IS NULL
RETURNING pod AS lost_pod, merchant_id

-- name: forget
-- Tombstones that are no longer needed: after a day, or $1 seconds where there was no attempt.
DELETE FROM allocations
WHERE id IN (SELECT id FROM allocations
             WHERE ended_at < clock_timestamp() - CASE WHEN has_attempt THEN interval '1 day'
                                                       ELSE make_interval(secs => $1) END
             ORDER BY id LIMIT 5000 FOR NO KEY UPDATE SKIP LOCKED)

-- name: free_slots
-- Slots that dials may reserve, picked by Postgres: without Valkey, or after Valkey proposed a slot that another row has.
-- From a random position: dialers that picked in one order would win 25 % of their picks, at random they win 75 % (measured).
-- No row that heartbeats write is locked. Each tier leaves its inbound reserve, and reserves nothing for dials while an
-- answered call waits for it. A pod at which calls did not reach the agent is reserved for one dial in 30 s at most.
-- 10 % of a tier are 10 % of the slots of its pods, busy or not.
-- $1 tiers  $2 inbound reserve of each, -1: 10 %  $3 the most slots of each tier
-- $4 seconds without a request after which a waiting call has hung up
WITH reserved AS MATERIALIZED (
    SELECT t.tier, CASE WHEN t.callers >= 0 THEN t.callers
                        ELSE (SELECT coalesce(sum(p.calls_max), 0) FROM present_pods AS p
                              WHERE p.tier = t.tier AND NOT p.is_silent)::int / 10 END AS callers,
           t.tier = ANY((SELECT waited_tiers($4))::text[]) AS is_waited_for
    FROM unnest($1::text[], $2::int[]) AS t (tier, callers)
), free AS (
    SELECT f.tier, f.name, f.slot, f.incarnation,
           row_number() OVER (PARTITION BY f.tier ORDER BY f.missed >= 2, f.slot, random()) AS place,
           count(*) OVER (PARTITION BY f.tier) AS slots
    FROM free_pod_slots AS f
    WHERE f.tier = ANY($1::text[]) AND NOT f.is_silent
      AND (f.missed < 2 OR f.missed_at <= clock_timestamp() - interval '30 seconds')
)
SELECT f.tier, f.name AS pod, f.slot, f.incarnation
FROM free AS f JOIN reserved AS r ON r.tier = f.tier
WHERE f.place <= least($3::int, f.slots - r.callers)
  AND NOT r.is_waited_for
ORDER BY f.tier, f.place

-- name: is_resumed
-- Whether a call has gone into a later turn than this one, so that its earlier agent ends nothing.
SELECT EXISTS (SELECT FROM allocations WHERE call = $1 AND turn > $2 AND ended_at IS NULL)

-- name: live
-- Which of these allocations are live.
SELECT id FROM allocations WHERE id = ANY($1::uuid[]) AND ended_at IS NULL

-- name: merchant_tiers
-- The tiers that these merchants have of their own, as JSON. The others have none.
SELECT merchant_id, config FROM router_merchants WHERE merchant_id = ANY($1::text[])

-- name: note
-- Allocations that were made while Postgres was unavailable, as Valkey or the answer URL named them. Postgres's present rows
-- win: a row that has ended stays so, and one that has a pod keeps it.
-- $1 id  $2 has an attempt  $3 call  $4 merchant  $5 pod  $6 slot  $7 incarnation  $8 source pool
INSERT INTO allocations AS a (id, has_attempt, call, merchant_id, pod, slot, incarnation, source_pool, begun_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, clock_timestamp())
ON CONFLICT (id) DO UPDATE
SET call = coalesce(a.call, excluded.call), begun_at = coalesce(a.begun_at, excluded.begun_at)
WHERE a.ended_at IS NULL

-- name: owners
-- The allocations of these slots, for Valkey, which proposed them as free.
SELECT a.id, a.pod, a.slot
FROM unnest($1::text[], $2::int[]) AS w (pod, slot)
JOIN allocations AS a ON a.pod = w.pod AND a.slot = w.slot AND a.ended_at IS NULL

-- name: release
-- The function says what ends, and in which order it locks.
SELECT * FROM release_calls($1::text[], $2::text[], $3::smallint[], $4::uuid[], $5)

-- name: resume
-- The stream of a call is over, the call is not, and its allocation was not released: its agent was lost. The call goes into
-- its next turn and waits for a pod, so that tokens, releases and reports of the lost agent are refused from here on. The pod
-- that it had is recorded: until its next heartbeat it is unknown whether it lives.
-- One compare-and-set: of two requests at once one finds the row, and a release or the end of the attempt wins or loses
-- against it as a whole. A row that is behind the stream was not written while Postgres was unavailable.
-- $1 attempt  $2 the carrier's call id  $3 the turn of the stream that is over
WITH mine AS (
    SELECT a.id, a.pod, a.joined_at IS NULL AS never_joined
    FROM allocations AS a
    WHERE a.id = $1 AND a.call = $2 AND a.turn <= $3 AND a.ended_at IS NULL
    FOR NO KEY UPDATE
)
UPDATE allocations AS a
SET turn = $3::smallint + 1, pod = NULL, slot = NULL, incarnation = NULL, asked_at = clock_timestamp(),
    lost_pods = array_remove(a.lost_pods || mine.pod, NULL),
    -- Of losses in a row the first: a pod with a heartbeat since is not among those that died together.
    lost_at = CASE WHEN a.lost_at > clock_timestamp() - interval '10 seconds' THEN a.lost_at ELSE clock_timestamp() END
FROM mine
WHERE a.id = mine.id
RETURNING mine.pod AS lost_pod, a.merchant_id, mine.never_joined

-- name: resume_missing
-- A call that got its pod while Postgres was unavailable, and whose agent was lost before that was written. A later note finds
-- this row and changes nothing of it. $1 attempt  $2 the carrier's call id  $3 the turn of the stream that is over
INSERT INTO allocations (id, has_attempt, call, merchant_id, turn, begun_at)
SELECT t.id, true, $2, t.merchant_id, $3::smallint + 1, clock_timestamp()
FROM attempts AS t
WHERE t.id = $1 AND t.state IN ('dialing', 'in_doubt', 'accepted', 'ringing', 'answered')
ON CONFLICT DO NOTHING
RETURNING NULL::text AS lost_pod, merchant_id

-- name: turn
-- The state of a call that the statement before could not move: read in a statement of its own, because one that waited for a
-- row does not see what it waited for.
SELECT call, turn, ended_at IS NOT NULL AS is_over, merchant_id FROM allocations WHERE id = $1

-- name: untaken
-- Ended calls whose document led to a pod that names its calls, and that this pod did not name although it sent a heartbeat
-- 5 s after their end: no heartbeat named them and no release came. Their stream did not reach the agent, and a carrier that
-- does not send a second request does not report it. Of the last minute: appended once, whichever process runs this.
SELECT a.id
FROM allocations AS a JOIN pods AS p ON p.name = a.pod AND p.incarnation = a.incarnation
WHERE a.ended_at > clock_timestamp() - interval '1 minute' AND a.has_attempt AND a.begun_at IS NOT NULL AND a.joined_at IS NULL
  AND p.names_calls AND p.heard_at > a.ended_at + interval '5 seconds'
ORDER BY a.id LIMIT 500
