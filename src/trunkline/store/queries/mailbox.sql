-- name: append
-- Append events, those that are new: the function says how, and why it is one.
SELECT in_box, number, status_before, known_at FROM mailbox_append($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: append_one
-- Append one event, if it is new: the function says how it differs from a batch of one, which is in cost alone.
SELECT number, is_new, status_before FROM mailbox_append_one($1, $2, $3, $4, $5, $6)

-- name: bury
-- Make a mailbox whose workers were lost too often a dead letter. Guarded by the fence.
UPDATE mailboxes
SET processing_status = 'dead', claimable_at = NULL, locked_by = NULL
WHERE kind = $1 AND key = $2 AND fence = $3 AND processing_status = 'processing'
RETURNING last_error

-- name: claim
-- Claim mailboxes that have work, and read their pending events: the function says how, and why it is one.
SELECT mailbox_key, mailbox_id, fence, processed, appended, failures, seq, type, payload, created_at
FROM mailbox_claim($1, $2, $3, $4, $5, $6)

-- name: claim_one
-- Claim one mailbox if it has work, and read its pending events: the function says how it differs from `claim`, which is
-- in cost alone.
SELECT mailbox_key, mailbox_id, fence, processed, appended, failures, seq, type, payload, created_at
FROM mailbox_claim_one($1, $2, $3, $4, $5)

-- name: complete
-- Complete mailboxes: the function says how, and why it is one.
SELECT key, processing_status, took FROM mailbox_complete($1, $2, $3, $4, $5, $6)

-- name: fail
-- Put a failed mailbox back with a later turn, or make it a dead letter after too many failures. Guarded by the fence.
-- $7: whether the failure counts. What the database could not do now says nothing about the mailbox.
UPDATE mailboxes
SET processing_status = CASE WHEN $7 AND failures + 1 >= $5 THEN 'dead' ELSE 'queued' END,
    claimable_at = CASE WHEN $7 AND failures + 1 >= $5 THEN NULL ELSE clock_timestamp() + make_interval(secs => $6) END,
    failures = failures + $7::bool::int, last_error = $4, locked_by = NULL
WHERE kind = $1 AND key = $2 AND fence = $3 AND processing_status = 'processing'
RETURNING processing_status

-- name: follow_clock_back
-- The clock was set back: turns and ends of leases that were written before lie as far ahead as the jump was. A waiting
-- mailbox has its turn now, unless it failed: then after the longest backoff at most. A lease ends when it would have, by the
-- time that really passed; live workers renew anyway.
UPDATE mailboxes AS m
SET claimable_at = CASE WHEN m.processing_status = 'processing'
                        THEN least(m.claimable_at - make_interval(secs => $4), clock_timestamp() + make_interval(secs => $2))
                        WHEN m.failures = 0 THEN clock_timestamp()
                        ELSE least(m.claimable_at, clock_timestamp() + make_interval(secs => $3)) END
WHERE m.kind = $1 AND m.id = ANY (ARRAY(
    SELECT o.id FROM mailboxes AS o
    WHERE o.kind = $1 AND o.claimable_at > clock_timestamp()
      AND (o.processing_status = 'queued' OR o.claimable_at > clock_timestamp() + make_interval(secs => $2))
    FOR NO KEY UPDATE SKIP LOCKED))

-- name: truly_due
-- The clock was set forward by $2 seconds: mailboxes whose turn it is, and leases that would be over without that. Leases that
-- the jump alone ended are their owners' to renew.
SELECT key FROM mailboxes
WHERE kind = $1 AND claimable_at <= statement_timestamp()
  AND (processing_status = 'queued' OR claimable_at <= statement_timestamp() - make_interval(secs => $2))
ORDER BY claimable_at
LIMIT $3

-- name: get
-- One mailbox.
SELECT kind, key, processing_status, appended - processed AS pending, appended, processed, failures, last_error, locked_by,
       claimable_at, processing_started_at, last_processed_at, created_at
FROM mailboxes
WHERE kind = $1 AND key = $2

-- name: get_event
-- One event of a mailbox.
SELECT m.kind, m.key, e.seq, e.dedupe_key, e.type, e.payload, e.created_at, e.processed_at, e.error
FROM mailboxes AS m JOIN mailbox_events AS e ON e.mailbox_id = m.id
WHERE m.kind = $1 AND m.key = $2 AND e.seq = $3

-- name: has_kind
-- Whether there is any mailbox of a kind.
SELECT EXISTS (SELECT FROM mailboxes WHERE kind = $1)

-- name: list
-- Mailboxes of a kind in the order of their keys, after $3, of one status or all ({status}). Dead ones have their own index,
-- which needs the status as it is written there.
SELECT kind, key, processing_status, appended - processed AS pending, appended, processed, failures, last_error, locked_by,
       claimable_at, processing_started_at, last_processed_at, created_at
FROM mailboxes
WHERE kind = $1 AND {status} AND key > $3
ORDER BY key
LIMIT $4

-- name: list_active
-- Mailboxes of a kind that wait or are claimed, in the order of their keys, after $3. Where few are not idle they are all read
-- from the index of those and sorted: in the order of keys, a million idle ones would come before the first that waits. Where
-- many are, that order soon meets a page of them.
WITH few AS MATERIALIZED (
    SELECT count(*) <= 1000 AS is_so
    FROM (SELECT FROM mailboxes WHERE kind = $1 AND claimable_at IS NOT NULL LIMIT 1001) AS counted
), near AS MATERIALIZED (
    SELECT * FROM mailboxes
    WHERE (SELECT is_so FROM few) AND kind = $1 AND claimable_at IS NOT NULL AND processing_status = $2
    ORDER BY claimable_at
), listed AS (
    SELECT * FROM near WHERE key > $3
    UNION ALL
    (SELECT * FROM mailboxes
     WHERE NOT (SELECT is_so FROM few) AND kind = $1 AND processing_status = $2 AND key > $3
     ORDER BY key LIMIT $4)
)
SELECT kind, key, processing_status, appended - processed AS pending, appended, processed, failures, last_error, locked_by,
       claimable_at, processing_started_at, last_processed_at, created_at
FROM listed
ORDER BY key
LIMIT $4

-- name: list_events
-- The events of a mailbox after $3, in their order: all, the unprocessed, or the parked ones.
SELECT m.kind, m.key, e.seq, e.dedupe_key, e.type, e.payload, e.created_at, e.processed_at, e.error
FROM mailboxes AS m JOIN mailbox_events AS e ON e.mailbox_id = m.id
WHERE m.kind = $1 AND m.key = $2 AND e.seq > $3
  AND ($4::text = 'all' OR ($4 = 'unprocessed' AND e.processed_at IS NULL) OR ($4 = 'parked' AND e.error IS NOT NULL))
ORDER BY e.seq
LIMIT $5

-- name: lock
-- Lock mailboxes until the end of the transaction, sorted, and insert missing ones: the function says how.
SELECT FROM mailbox_lock($1, $2, $3)

-- name: lock_free
-- Lock those of these mailboxes that are not locked, without waiting; returns their positions: the function says how.
SELECT mailbox_lock_free($1, $2)

-- name: mark
-- Mark events of a claimed mailbox. Guarded by the fence.
UPDATE mailbox_events AS e
SET processed_at = clock_timestamp()
FROM mailboxes AS m
WHERE m.kind = $1 AND m.key = $2 AND m.fence = $3 AND m.processing_status = 'processing'
  AND e.mailbox_id = m.id AND e.seq = ANY($4::bigint[]) AND e.processed_at IS NULL
RETURNING e.seq

-- name: park
-- Store the reason beside unreadable events. The completion in the same transaction has marked them.
UPDATE mailbox_events AS e
SET error = p.error, processed_at = COALESCE(e.processed_at, clock_timestamp())
FROM unnest($2::text[], $3::bigint[], $4::text[]) AS p (key, seq, error)
JOIN mailboxes AS m ON m.kind = $1 AND m.key = p.key
WHERE e.mailbox_id = m.id AND e.seq = p.seq

-- name: queue_if_idle
-- From `idle` to `queued`, if it is idle.
UPDATE mailboxes
SET processing_status = 'queued', claimable_at = clock_timestamp()
WHERE kind = $1 AND key = $2 AND processing_status = 'idle'
RETURNING key

-- name: release
-- Give claims back unhandled, when a worker stops: the next one takes them at once, and no failure is counted.
WITH ours AS (
    SELECT m.kind, m.key
    FROM unnest($2::text[], $3::bigint[]) AS c (key, fence) JOIN mailboxes AS m ON m.kind = $1 AND m.key = c.key
    WHERE m.fence = c.fence AND m.processing_status = 'processing'
    ORDER BY m.key
    FOR NO KEY UPDATE OF m
)
UPDATE mailboxes AS m
SET processing_status = 'queued', claimable_at = clock_timestamp(), locked_by = NULL
FROM ours
WHERE m.kind = ours.kind AND m.key = ours.key
RETURNING m.key

-- name: rename
-- Move mailboxes to another kind, whose handlers take them from then on. Claimed ones stay, and those whose key exists under
-- the new kind: two mailboxes cannot become one, since each numbers its own events.
WITH free AS (
    SELECT m.kind, m.key FROM mailboxes AS m
    WHERE m.kind = $1 AND m.processing_status <> 'processing'
      AND NOT EXISTS (SELECT FROM mailboxes AS other WHERE other.kind = $2 AND other.key = m.key)
    ORDER BY m.key
    LIMIT $3
    FOR UPDATE SKIP LOCKED
)
UPDATE mailboxes AS m SET kind = $2
FROM free
WHERE m.kind = free.kind AND m.key = free.key
RETURNING m.key

-- name: renew
-- Renew the leases of what is still being handled; returns the fences that were lost. A locked row is left for the next
-- renewal: there are three of them in a lease.
WITH held AS (
    SELECT h.key, h.fence, m.fence AS true_fence, m.processing_status
    FROM unnest($2::text[], $3::bigint[]) AS h (key, fence)
    LEFT JOIN mailboxes AS m ON m.kind = $1 AND m.key = h.key
), ours AS (
    SELECT m.kind, m.key, m.fence
    FROM held JOIN mailboxes AS m ON m.kind = $1 AND m.key = held.key
    WHERE m.fence = held.fence AND m.processing_status = 'processing'
    FOR NO KEY UPDATE OF m SKIP LOCKED
), renewed AS (
    UPDATE mailboxes AS m
    SET claimable_at = clock_timestamp() + make_interval(secs => $4)
    FROM ours
    WHERE m.kind = ours.kind AND m.key = ours.key AND m.fence = ours.fence
)
SELECT fence FROM held WHERE true_fence IS DISTINCT FROM fence OR processing_status <> 'processing'

-- name: replay
-- Bring dead mailboxes back with their failures reset: one, or all of a kind.
WITH dead AS (
    SELECT kind, key FROM mailboxes
    WHERE kind = $1 AND processing_status = 'dead' AND ($2::text IS NULL OR key = $2)
    ORDER BY key
    LIMIT $3
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE mailboxes AS m
SET processing_status = 'queued', claimable_at = clock_timestamp(), failures = 0
FROM dead
WHERE m.kind = dead.kind AND m.key = dead.key
RETURNING m.key

-- name: replay_event
-- Append a parked event again, as if it came now: under its mailbox's lock it gets the next number. Its old number is below
-- those that are already processed.
WITH again AS (
    UPDATE mailbox_events AS e
    SET seq = m.appended + 1, processed_at = NULL, error = NULL
    FROM mailboxes AS m
    WHERE m.kind = $1 AND m.key = $2 AND e.mailbox_id = m.id AND e.seq = $3 AND e.error IS NOT NULL
    RETURNING e.seq
)
UPDATE mailboxes AS m
SET appended = again.seq,
    processing_status = CASE WHEN m.processing_status = 'idle' THEN 'queued' ELSE m.processing_status END,
    claimable_at = CASE WHEN m.processing_status = 'idle' THEN clock_timestamp() ELSE m.claimable_at END
FROM again
WHERE m.kind = $1 AND m.key = $2
RETURNING again.seq

-- name: retire_events
-- Remove events that were processed long ago, some at a time, roughly in the order of their arrival. Unprocessed ones stay,
-- however old. The age is that of `created_at`, which has an index: an event that waited for long is removed only when it has
-- been processed for as long. The scan continues from $3; what lies out of order waits for the next run.
WITH old AS (
    SELECT ctid, created_at FROM mailbox_events
    WHERE created_at < statement_timestamp() - make_interval(secs => $1) AND created_at >= $3
      AND processed_at < statement_timestamp() - make_interval(secs => $1)
    LIMIT $2
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM mailbox_events WHERE ctid = ANY(ARRAY(SELECT old.ctid FROM old))
)
SELECT count(*) AS removed, min(created_at) AS upto FROM old

-- name: retire_mailboxes
-- Remove mailboxes that have been idle for long and have no events left. One that is appended to meanwhile is locked, or no
-- longer idle when its lock is acquired; a later append inserts it again.
WITH old AS (
    SELECT m.kind, m.key FROM mailboxes AS m
    WHERE m.processing_status = 'idle'
      AND COALESCE(m.last_processed_at, m.created_at) < statement_timestamp() - make_interval(secs => $1)
      AND NOT EXISTS (SELECT FROM mailbox_events AS e WHERE e.mailbox_id = m.id)
    LIMIT $2
    FOR UPDATE OF m SKIP LOCKED
)
DELETE FROM mailboxes AS m USING old WHERE m.kind = old.kind AND m.key = old.key AND m.processing_status = 'idle'

-- name: set_aside
-- Park a pending event, so that its mailbox can go on without it.
UPDATE mailbox_events AS e
SET processed_at = clock_timestamp(), error = $4
FROM mailboxes AS m
WHERE m.kind = $1 AND m.key = $2 AND e.mailbox_id = m.id AND e.seq = $3 AND e.processed_at IS NULL
RETURNING e.seq

-- name: set_aside_lately
-- How many events of each kind were parked within the last $1 seconds, by any process. The partial index has the parked ones
-- alone.
WITH recent AS MATERIALIZED (
    SELECT mailbox_id FROM mailbox_events
    WHERE error IS NOT NULL AND processed_at > clock_timestamp() - make_interval(secs => $1)
)
SELECT m.kind, count(*) AS events
FROM recent AS r JOIN mailboxes AS m ON m.id = r.mailbox_id
GROUP BY m.kind

-- name: stuck
-- Mailboxes that have been claimed for long: a slow handler, or a worker that died with a long lease. Their leases end after
-- every waiting turn, or ended long ago: they are searched at both ends of the queue.
WITH RECURSIVE kinds AS (
    (SELECT kind FROM mailboxes WHERE claimable_at IS NOT NULL ORDER BY kind LIMIT 1)
    UNION ALL
    SELECT (SELECT m.kind FROM mailboxes AS m WHERE m.claimable_at IS NOT NULL AND m.kind > k.kind ORDER BY m.kind LIMIT 1)
    FROM kinds AS k WHERE k.kind IS NOT NULL
), ends AS (
    SELECT m.*
    FROM kinds AS k
    CROSS JOIN LATERAL (
        (SELECT * FROM mailboxes AS m WHERE m.kind = k.kind AND m.claimable_at IS NOT NULL ORDER BY m.claimable_at DESC LIMIT 1000)
        UNION ALL
        (SELECT * FROM mailboxes AS m WHERE m.kind = k.kind AND m.claimable_at IS NOT NULL ORDER BY m.claimable_at LIMIT 1000)
    ) AS m
)
SELECT DISTINCT ON (processing_started_at, kind, key)
       kind, key, processing_status, appended - processed AS pending, appended, processed, failures, last_error, locked_by,
       claimable_at, processing_started_at, last_processed_at, created_at
FROM ends
WHERE processing_status = 'processing' AND ($3::text[] IS NULL OR kind = ANY($3))
  AND processing_started_at < clock_timestamp() - make_interval(secs => $1)
ORDER BY processing_started_at, kind, key
LIMIT $2

-- name: summary
-- Counts of waiting, claimed and dead mailboxes, by kind, of all kinds or of these. Read from the partial indexes, kind by
-- kind: idle mailboxes cost nothing. Of each kind at most $2 are counted (NULL: all), claimed ones before those that wait;
-- the age of the oldest is also read from the other end.
WITH RECURSIVE kinds AS (
    (SELECT kind FROM mailboxes WHERE claimable_at IS NOT NULL ORDER BY kind LIMIT 1)
    UNION ALL
    SELECT (SELECT m.kind FROM mailboxes AS m WHERE m.claimable_at IS NOT NULL AND m.kind > k.kind ORDER BY m.kind LIMIT 1)
    FROM kinds AS k WHERE k.kind IS NOT NULL
), dead_kinds AS (
    (SELECT kind FROM mailboxes WHERE processing_status = 'dead' ORDER BY kind LIMIT 1)
    UNION ALL
    SELECT (SELECT m.kind FROM mailboxes AS m WHERE m.processing_status = 'dead' AND m.kind > k.kind ORDER BY m.kind LIMIT 1)
    FROM dead_kinds AS k WHERE k.kind IS NOT NULL
), active AS (
    SELECT k.kind, m.*
    FROM kinds AS k
    CROSS JOIN LATERAL (
        (SELECT processing_status, appended - processed AS events, coalesce(last_processed_at, created_at) AS since, true AS counts
         FROM mailboxes AS m WHERE m.kind = k.kind AND m.claimable_at IS NOT NULL
         ORDER BY m.claimable_at DESC LIMIT $2)
        UNION ALL
        (SELECT processing_status, 0, coalesce(last_processed_at, created_at), false
         FROM mailboxes AS m WHERE m.kind = k.kind AND m.claimable_at IS NOT NULL
         ORDER BY m.claimable_at LIMIT 100)) AS m
    UNION ALL
    SELECT k.kind, m.*
    FROM dead_kinds AS k
    CROSS JOIN LATERAL (
        SELECT processing_status, appended - processed, coalesce(last_processed_at, created_at), true
        FROM mailboxes AS m WHERE m.kind = k.kind AND m.processing_status = 'dead'
        ORDER BY m.key LIMIT $2) AS m
)
SELECT kind, processing_status AS status, count(*) FILTER (WHERE counts) AS mailboxes, sum(events)::bigint AS events,
       extract(epoch FROM clock_timestamp() - min(since))::float8 AS oldest_s
FROM active
WHERE $1::text[] IS NULL OR kind = ANY($1)
GROUP BY kind, processing_status
HAVING count(*) FILTER (WHERE counts) > 0
ORDER BY kind, processing_status
