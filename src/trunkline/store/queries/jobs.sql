-- name: advance_schedule
-- The tick was enqueued.
UPDATE job_schedules SET next_at = $2, last_at = $3 WHERE name = $1

-- name: ask_cancel
-- Request the cancellation of a running job. Its worker gets it with the next renewal of the lease.
UPDATE job_outbox SET cancel_requested = true WHERE id = $1 AND status = 'IN_PROGRESS'

-- name: bury
-- Move jobs that failed for good to the dead letters, by pairs of id and fence. Locked rows are skipped, as in `finish`.
WITH free AS (
    SELECT j.place
    FROM unnest($1::uuid[], $2::bigint[]) AS e (id, fence) CROSS JOIN LATERAL (
        SELECT o.ctid AS place FROM job_outbox AS o
        WHERE o.id = e.id AND o.fence = e.fence AND ($3::text IS NULL OR o.locked_by = $3)
        LIMIT 1
        FOR UPDATE SKIP LOCKED) AS j
), gone AS (
    DELETE FROM job_outbox WHERE ctid = ANY (ARRAY(SELECT place FROM free)) RETURNING *
)
INSERT INTO job_dead (id, created_at, died_at, fence, priority, attempt_count, max_attempts, job_type, unique_key,
                      concurrency_key, reseller_id, merchant_id, worker, last_error_code, last_error_message, payload)
SELECT g.id, g.created_at, clock_timestamp(), g.fence, g.priority, g.attempt_count, g.max_attempts, g.job_type,
       g.unique_key, g.concurrency_key, g.reseller_id, g.merchant_id, g.locked_by, e.error_code, e.error_message,
       g.payload
FROM gone AS g JOIN unnest($1::uuid[], $4::text[], $5::text[]) AS e (id, error_code, error_message) ON e.id = g.id
RETURNING id, job_type, concurrency_key, reseller_id, merchant_id

-- name: cancel_pending
-- End a waiting job that is no longer wanted.
WITH gone AS (
    DELETE FROM job_outbox WHERE id = $1 AND status = 'PENDING' RETURNING *
)
INSERT INTO job_history (id, created_at, finished_at, priority, attempt_count, max_attempts, job_type, outcome,
                         unique_key, concurrency_key, reseller_id, merchant_id, last_error_code, last_error_message)
SELECT id, created_at, clock_timestamp(), priority, attempt_count, max_attempts, job_type, 'cancelled',
       unique_key, concurrency_key, reseller_id, merchant_id, 'cancelled', $2
FROM gone

-- name: claim
-- Claim due jobs, lane by lane in the given order, each from its floor on: below it lie only the dead rows of jobs that were
-- claimed before, and stepping over those is what makes a queue slow. statement_timestamp() and not clock_timestamp(): a
-- volatile bound is no index condition, and every future job would be read. Jobs that are due within $8 seconds are claimed
-- too: their worker starts them at their time.
-- Rows come back in no order, each with the time of the read; if there are none, that time comes alone.
-- The commit does not wait for the disk: a claim that is lost with the server was never made. Its fence fits nothing, and none
-- after it is as small. Only for this transaction, so that a pooler can stand between.
WITH lanes AS (
    SELECT l.job_type, l.priority, l.floor_at, l.floor_id
    FROM unnest($1::text[], $2::smallint[], $3::timestamptz[], $4::uuid[])
         WITH ORDINALITY AS l (job_type, priority, floor_at, floor_id, place)
    WHERE NOT EXISTS (SELECT FROM job_pauses AS p WHERE p.job_type = l.job_type)
    ORDER BY l.place
), due AS (
    SELECT j.place
    FROM lanes AS l CROSS JOIN LATERAL (
        SELECT o.ctid AS place FROM job_outbox AS o
        WHERE o.status = 'PENDING' AND o.concurrency_key IS NULL AND o.job_type = l.job_type
          AND o.priority = l.priority AND (o.run_at, o.id) >= (l.floor_at, l.floor_id)
          AND o.run_at <= statement_timestamp() + make_interval(secs => $8)
        ORDER BY o.run_at, o.id
        LIMIT $5
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS j
    LIMIT $5
), claimed AS (
    UPDATE job_outbox
    SET status = 'IN_PROGRESS', attempt_count = attempt_count + 1,
        fence = greatest(fence + 1, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint),
        locked_by = $6, locked_at = greatest(statement_timestamp(), run_at),
        lease_expires_at = clock_timestamp() + make_interval(secs => $7)
    WHERE ctid = ANY (ARRAY(SELECT place FROM due))
    RETURNING id, fence, job_type, priority, run_at, created_at, attempt_count, max_attempts, unique_key,
              concurrency_key, reseller_id, merchant_id, payload
)
SELECT statement_timestamp() AS looked_at, c.*
FROM (SELECT set_config('synchronous_commit', 'off', true) AS now) AS unsynced
LEFT JOIN claimed AS c ON unsynced.now = 'off'

-- name: claim_keyed
-- Third step, in a later statement than the locks: what runs under each key is now known. As many jobs as the key has capacity
-- for are claimed; the others are parked, so that no later claim has to step over them.
WITH keys AS (
    SELECT w.job_type, w.key, w.reseller_id, w.merchant_id, greatest(w.running_max - k.running, 0) AS room
    FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::int[])
         AS w (job_type, key, reseller_id, merchant_id, running_max)
    JOIN job_keys AS k USING (job_type, key, reseller_id, merchant_id)
), waiting AS (
    SELECT o.id, o.job_type, o.concurrency_key AS key, coalesce(o.reseller_id, '') AS reseller_id,
           coalesce(o.merchant_id, '') AS merchant_id, o.priority, o.run_at
    FROM job_outbox AS o
    WHERE o.id = ANY ($1::uuid[]) AND o.status = 'PENDING' AND NOT o.parked
    FOR NO KEY UPDATE SKIP LOCKED
), ranked AS (
    SELECT w.id, k.room,
           row_number() OVER (PARTITION BY w.job_type, w.key, w.reseller_id, w.merchant_id
                              ORDER BY w.priority, w.run_at, w.id) AS place
    FROM waiting AS w JOIN keys AS k USING (job_type, key, reseller_id, merchant_id)
), parked AS (
    UPDATE job_outbox SET parked = true
    WHERE id = ANY (ARRAY(SELECT id FROM ranked WHERE place > room))
), claimed AS (
    UPDATE job_outbox
    SET status = 'IN_PROGRESS', attempt_count = attempt_count + 1,
        fence = greatest(fence + 1, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint),
        locked_by = $7, locked_at = statement_timestamp(),
        lease_expires_at = clock_timestamp() + make_interval(secs => $8)
    WHERE id = ANY (ARRAY(SELECT id FROM ranked WHERE place <= room))
    RETURNING id, fence, job_type, priority, run_at, created_at, attempt_count, max_attempts, unique_key,
              concurrency_key, reseller_id, merchant_id, payload
), counted AS (
    UPDATE job_keys AS k SET running = k.running + c.n
    FROM (SELECT job_type, concurrency_key, coalesce(reseller_id, '') AS reseller_id,
                 coalesce(merchant_id, '') AS merchant_id, count(*) AS n FROM claimed GROUP BY 1, 2, 3, 4) AS c
    WHERE k.job_type = c.job_type AND k.key = c.concurrency_key AND k.reseller_id = c.reseller_id
      AND k.merchant_id = c.merchant_id
)
SELECT * FROM claimed

-- name: dead_ids
-- Dead letters that may be replayed, oldest first.
SELECT id FROM job_dead
WHERE ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
  AND ($3::text IS NULL OR job_type = $3) AND ($4::uuid IS NULL OR id = $4)
ORDER BY id
LIMIT $5
FOR UPDATE SKIP LOCKED

-- name: dead_letters
-- How many dead letters there are of each type that has any, counted up to a limit, also of types that no process has any
-- more. Type by type from the index: a thousand of one type hide no other.
WITH RECURSIVE types AS (
    (SELECT job_type FROM job_dead ORDER BY job_type LIMIT 1)
    UNION ALL
    SELECT (SELECT d.job_type FROM job_dead AS d WHERE d.job_type > t.job_type ORDER BY d.job_type LIMIT 1)
    FROM types AS t WHERE t.job_type IS NOT NULL
)
SELECT t.job_type,
       (SELECT count(*) FROM (SELECT FROM job_dead AS d WHERE d.job_type = t.job_type ORDER BY d.id LIMIT $1) AS x) AS dead
FROM types AS t WHERE t.job_type IS NOT NULL

-- name: dead_rows
-- The number of dead rows of the outbox, by the statistics.
SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'job_outbox'::regclass

-- name: due_back
-- The clock was set back by $1 seconds: jobs that were enqueued before, to run at once, are due now and not when the clock is
-- there again. So are those that were put back to wait: their fence is the time of their claim on the old clock, and they wait
-- for as long as they had to, counted from now. A job with a requested time keeps it, by the clock as it is.
-- Where no worker saw the jump ($1 is NULL) a fence in the future shows it, and the least that it can have been.
UPDATE job_outbox
SET run_at = CASE WHEN run_at <= created_at THEN clock_timestamp()
                  ELSE clock_timestamp() + (run_at - to_timestamp(fence / 1000000.0)) END,
    created_at = least(created_at, clock_timestamp())
WHERE id = ANY (ARRAY(
    SELECT id FROM job_outbox
    WHERE status = 'PENDING' AND run_at > clock_timestamp()
      AND (created_at > clock_timestamp() AND run_at <= created_at
           OR to_timestamp(fence / 1000000.0) > clock_timestamp() AND run_at >= to_timestamp(fence / 1000000.0)
              AND run_at < to_timestamp(fence / 1000000.0)
                           + coalesce(make_interval(secs => $1), to_timestamp(fence / 1000000.0) - clock_timestamp()))
    FOR NO KEY UPDATE SKIP LOCKED))
RETURNING job_type, priority, concurrency_key IS NOT NULL AS is_keyed, run_at

-- name: expired
-- Jobs whose worker let its lease expire, locked until the end of the transaction: a worker that comes back now finds that the
-- job is no longer its own. All of them since $1, or those among $3. The clock was just set forward by $4 seconds: those whose
-- lease would be over without that.
SELECT id, fence, job_type, attempt_count, max_attempts, locked_by, unique_key, lease_expires_at
FROM job_outbox
WHERE status = 'IN_PROGRESS' AND lease_expires_at >= $1
  AND lease_expires_at < statement_timestamp() - make_interval(secs => $4)
  AND ($3::uuid[] IS NULL OR id = ANY ($3))
ORDER BY lease_expires_at
LIMIT $2
FOR UPDATE SKIP LOCKED

-- name: finish
-- Move finished jobs out, by pairs of id and fence. Pairs that are not returned belong to another worker now, are gone, or are
-- locked: this statement does not wait, because one row that stays locked would delay the whole batch.
WITH ends AS (
    SELECT * FROM unnest($1::uuid[], $2::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::real[], $9::text[])
         AS e (id, fence, outcome, result, error_code, error_message, fraction, note)
), free AS (
    SELECT j.place
    FROM unnest($1::uuid[], $2::bigint[]) AS e (id, fence) CROSS JOIN LATERAL (
        SELECT o.ctid AS place FROM job_outbox AS o
        WHERE o.id = e.id AND o.fence = e.fence AND ($3::text IS NULL OR o.locked_by = $3)
        LIMIT 1
        FOR UPDATE SKIP LOCKED) AS j
), gone AS (
    DELETE FROM job_outbox WHERE ctid = ANY (ARRAY(SELECT place FROM free)) RETURNING *
)
INSERT INTO job_history (id, created_at, started_at, finished_at, priority, attempt_count, max_attempts, fraction,
                         job_type, outcome, unique_key, concurrency_key, reseller_id, merchant_id, worker,
                         last_error_code, last_error_message, note, result)
SELECT g.id, g.created_at, g.locked_at, clock_timestamp(), g.priority, g.attempt_count, g.max_attempts, e.fraction,
       g.job_type, e.outcome, g.unique_key, g.concurrency_key, g.reseller_id, g.merchant_id, g.locked_by,
       coalesce(e.error_code, g.last_error_code), coalesce(e.error_message, g.last_error_message), e.note, e.result
FROM gone AS g JOIN ends AS e ON e.id = g.id
RETURNING id, job_type, concurrency_key, reseller_id, merchant_id

-- name: finish_at_once
-- As `finish`, for callers with a short lock_timeout that can repeat it: it waits for a locked row until then. Nearly always
-- none is, and locking every row before its deletion takes 17 % more of Postgres's time.
-- IS TRUE keeps the planner from making a join of the pairs: they are looked up in a hash.
WITH ends AS (
    SELECT * FROM unnest($1::uuid[], $2::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::real[], $9::text[])
         AS e (id, fence, outcome, result, error_code, error_message, fraction, note)
), gone AS (
    DELETE FROM job_outbox AS o
    WHERE o.id = ANY ($1::uuid[]) AND o.locked_by = $3
      AND ((o.id, o.fence) IN (SELECT e.id, e.fence FROM unnest($1::uuid[], $2::bigint[]) AS e (id, fence))) IS TRUE
    RETURNING o.*
)
INSERT INTO job_history (id, created_at, started_at, finished_at, priority, attempt_count, max_attempts, fraction,
                         job_type, outcome, unique_key, concurrency_key, reseller_id, merchant_id, worker,
                         last_error_code, last_error_message, note, result)
SELECT g.id, g.created_at, g.locked_at, clock_timestamp(), g.priority, g.attempt_count, g.max_attempts, e.fraction,
       g.job_type, e.outcome, g.unique_key, g.concurrency_key, g.reseller_id, g.merchant_id, g.locked_by,
       coalesce(e.error_code, g.last_error_code), coalesce(e.error_message, g.last_error_message), e.note, e.result
FROM gone AS g JOIN ends AS e ON e.id = g.id
RETURNING id, job_type, concurrency_key, reseller_id, merchant_id

-- name: forget
-- Delete jobs that finished, or that died and were not replayed, long ago ({table}, {ended}), the oldest first. Ids begin with
-- their time, so the primary key leads to the old ones; a job that was enqueued long ago and ended recently stays.
DELETE FROM {table}
WHERE id = ANY (ARRAY(
    SELECT id FROM {table} WHERE id < $1 AND {ended} < $2 ORDER BY id LIMIT $3
))

-- name: forget_progress
-- Delete the progress of finished jobs; the history has the last report.
DELETE FROM job_progress AS p
WHERE p.updated_at < now() - interval '1 hour' AND NOT EXISTS (SELECT FROM job_outbox AS o WHERE o.id = p.job_id)

-- name: free_keys
-- Jobs under these keys have ended, in this transaction. Locked in order before they are changed.
WITH locked AS (
    SELECT k.job_type, k.key, k.reseller_id, k.merchant_id, f.n
    FROM job_keys AS k JOIN unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::int[])
         AS f (job_type, key, reseller_id, merchant_id, n) USING (job_type, key, reseller_id, merchant_id)
    ORDER BY k.job_type, k.key, k.reseller_id, k.merchant_id
    FOR NO KEY UPDATE OF k
)
UPDATE job_keys AS k SET running = greatest(k.running - l.n, 0)
FROM locked AS l
WHERE k.job_type = l.job_type AND k.key = l.key AND k.reseller_id = l.reseller_id AND k.merchant_id = l.merchant_id

-- name: get
-- One job, if this tenant may see it, and its progress.
SELECT j.id, j.job_type, j.status, j.outcome, j.priority, j.run_at, j.created_at, j.started_at, j.finished_at,
       j.attempt_count, j.max_attempts, j.locked_by, j.lease_expires_at, j.unique_key, j.concurrency_key,
       j.cancel_requested, j.reseller_id, j.merchant_id, j.last_error_code, j.last_error_message,
       coalesce(j.fraction, p.fraction) AS fraction, coalesce(j.note, p.note) AS note, j.result, j.payload
FROM jobs AS j LEFT JOIN job_progress AS p ON p.job_id = j.id
WHERE j.id = $3 AND ($1::text IS NULL OR j.reseller_id = $1) AND ($2::text IS NULL OR j.merchant_id = $2)

-- name: has_tables
-- Has this database, on the search path of this connection, ever had tables of jobs?
SELECT to_regclass('job_outbox') IS NOT NULL

-- name: held
-- Which of these pairs of id and fence are still this worker's (any worker's, if none is named). One that a result left out
-- and that is here was locked; one that is not here was lost.
SELECT h.id
FROM unnest($1::uuid[], $2::bigint[]) AS h (id, fence) CROSS JOIN LATERAL (
    SELECT FROM job_outbox AS o
    WHERE o.id = h.id AND o.fence = h.fence AND ($3::text IS NULL OR o.locked_by = $3)
    LIMIT 1) AS j

-- name: insert
-- Enqueue jobs without unique keys: they wait for no lock.
INSERT INTO job_outbox (id, job_type, priority, run_at, max_attempts, unique_key, concurrency_key,
                        reseller_id, merchant_id, payload)
SELECT id, job_type, priority, greatest(run_at, now()), max_attempts, unique_key, concurrency_key,
       reseller_id, merchant_id, payload
FROM unnest($1::uuid[], $2::text[], $3::smallint[], $4::timestamptz[], $5::smallint[], $6::text[], $7::text[],
            $8::text[], $9::text[], $10::text[])
     AS j (id, job_type, priority, run_at, max_attempts, unique_key, concurrency_key, reseller_id, merchant_id, payload)
RETURNING id, job_type, priority, unique_key, concurrency_key, reseller_id, merchant_id, run_at

-- name: insert_unique
-- Enqueue jobs of which some have unique keys: `job_insert` says how, and why it is a function.
SELECT id, job_type, priority, unique_key, concurrency_key, reseller_id, merchant_id, run_at
FROM job_insert($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: keyed_candidates
-- First step of a claim under concurrency keys: due jobs in the order of their lanes, and a row for each of their keys.
-- Each with the time of the read; if there are none, that time comes alone.
-- Keys that were just found locked, $6 to $9, are left out: however many jobs wait under one, they must not fill the result.
-- Committed by itself: another claim that inserts the same key would wait for this one's end. And only for missing keys: ON
-- CONFLICT DO NOTHING waits for the transaction that changes the conflicting row.
WITH lanes AS (
    SELECT l.job_type, l.priority, l.floor_at, l.floor_id
    FROM unnest($1::text[], $2::smallint[], $3::timestamptz[], $4::uuid[])
         WITH ORDINALITY AS l (job_type, priority, floor_at, floor_id, place)
    WHERE NOT EXISTS (SELECT FROM job_pauses AS p WHERE p.job_type = l.job_type)
    ORDER BY l.place
), candidates AS MATERIALIZED (
    SELECT j.id, j.job_type, j.concurrency_key, j.reseller_id, j.merchant_id
    FROM lanes AS l CROSS JOIN LATERAL (
        SELECT o.id, o.job_type, o.concurrency_key, coalesce(o.reseller_id, '') AS reseller_id,
               coalesce(o.merchant_id, '') AS merchant_id
        FROM job_outbox AS o
        WHERE o.status = 'PENDING' AND o.concurrency_key IS NOT NULL AND NOT o.parked AND o.job_type = l.job_type
          AND o.priority = l.priority AND (o.run_at, o.id) >= (l.floor_at, l.floor_id)
          AND o.run_at <= statement_timestamp()
          AND NOT EXISTS (
              SELECT FROM unnest($6::text[], $7::text[], $8::text[], $9::text[]) AS b (job_type, key, reseller_id, merchant_id)
              WHERE b.key = o.concurrency_key AND b.job_type = o.job_type
                AND b.reseller_id = coalesce(o.reseller_id, '') AND b.merchant_id = coalesce(o.merchant_id, ''))
        ORDER BY o.run_at, o.id
        LIMIT $5
    ) AS j
    LIMIT $5
), known AS (
    INSERT INTO job_keys (job_type, key, reseller_id, merchant_id)
    SELECT DISTINCT c.job_type, c.concurrency_key, c.reseller_id, c.merchant_id FROM candidates AS c
    WHERE NOT EXISTS (SELECT FROM job_keys AS k WHERE k.job_type = c.job_type AND k.key = c.concurrency_key
                      AND k.reseller_id = c.reseller_id AND k.merchant_id = c.merchant_id)
    ORDER BY 1, 2, 3, 4
    ON CONFLICT DO NOTHING
)
SELECT statement_timestamp() AS looked_at, c.id, c.job_type, c.concurrency_key, c.reseller_id, c.merchant_id
FROM (SELECT) AS always LEFT JOIN candidates AS c ON true

-- name: leases_back
-- The clock was set back: a lease that was given before ends as far ahead as the jump was. Those of live workers are renewed
-- anyway; those of dead ones end when they would have, by the time that really passed. A locked row is being renewed or ended.
-- Where no worker saw the jump ($2 is NULL), those end a lease from now whose claim is in the future.
UPDATE job_outbox
SET lease_expires_at = least(lease_expires_at - coalesce(make_interval(secs => $2), '0'),
                             clock_timestamp() + make_interval(secs => $1))
WHERE id = ANY (ARRAY(
    SELECT id FROM job_outbox
    WHERE status = 'IN_PROGRESS' AND lease_expires_at > clock_timestamp() + make_interval(secs => $1)
      AND ($2::float8 IS NOT NULL OR to_timestamp(fence / 1000000.0) > clock_timestamp())
    FOR NO KEY UPDATE SKIP LOCKED))

-- name: list
-- A page of jobs of all tenants or of one ({whose}), newest first. A tenant's are found by an index that the platform's own
-- list has no use for.
SELECT * FROM jobs
WHERE {whose} AND status = ANY ($3::text[]) AND ($4::text IS NULL OR job_type = $4) AND id < $5
ORDER BY id DESC
LIMIT $6

-- name: list_of_type
-- Jobs of one type of all tenants or of one ({whose}), newest first, among the 20,000 newest that fit otherwise: there is no
-- index of finished jobs by type, because every job that ends would have to be written to it.
SELECT * FROM (
    SELECT * FROM jobs
    WHERE {whose} AND status = ANY ($3::text[]) AND id < $5
    ORDER BY id DESC
    LIMIT 20000) AS newest
WHERE job_type = $4
ORDER BY id DESC
LIMIT $6

-- name: list_schedules
-- Every schedule that was ever declared.
SELECT name, job_type, rule, timezone, next_at, last_at, now() AS now FROM job_schedules ORDER BY name

-- name: list_ticks
-- When these schedules tick next. The clock is read after the rows: a tick was moved by an earlier reading.
SELECT name, job_type, rule, timezone, next_at, last_at, clock_timestamp() AS now FROM job_schedules
WHERE name = ANY ($1::text[]) AND next_at > clock_timestamp()
ORDER BY name

-- name: lock_drifting_keys
-- Keys to recount: those with a running count or parked jobs. A locked one is in use, and correct.
SELECT k.job_type, k.key, k.reseller_id, k.merchant_id FROM job_keys AS k
WHERE (k.job_type, k.key, k.reseller_id, k.merchant_id) > ($1, $2, $3, $4)
ORDER BY k.job_type, k.key, k.reseller_id, k.merchant_id
LIMIT $5
FOR UPDATE SKIP LOCKED

-- name: lock_due_schedules
-- Schedules whose tick has come. The transaction with the lock enqueues it, and moves the tick.
SELECT name, job_type, rule, timezone, next_at, last_at, now() AS now FROM job_schedules
WHERE name = ANY ($1::text[]) AND next_at <= now()
ORDER BY name
FOR UPDATE SKIP LOCKED

-- name: lock_held
-- Lock one claimed job until the end of the caller's transaction. It waits: a renewal holds the row for milliseconds.
SELECT FROM job_outbox WHERE id = $1 AND fence = $2 AND locked_by = $3 FOR UPDATE

-- name: lock_keys
-- Second step: lock the keys' rows. A locked one is being claimed or finished under; that key is left for later.
SELECT k.job_type, k.key, k.reseller_id, k.merchant_id
FROM job_keys AS k JOIN unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS w (job_type, key, reseller_id, merchant_id)
     USING (job_type, key, reseller_id, merchant_id)
ORDER BY k.job_type, k.key, k.reseller_id, k.merchant_id
FOR NO KEY UPDATE OF k SKIP LOCKED

-- name: lock_keys_of
-- Lock the concurrency keys of jobs that are about to end, in order, and return the jobs whose key another transaction has
-- locked: a handler's open one, or a claim. Those wait, and the others of their batch do not.
WITH keyed AS (
    SELECT o.id, o.job_type, o.concurrency_key AS key, coalesce(o.reseller_id, '') AS reseller_id,
           coalesce(o.merchant_id, '') AS merchant_id
    FROM job_outbox AS o
    WHERE o.id = ANY ($1::uuid[]) AND o.concurrency_key IS NOT NULL
), locked AS MATERIALIZED (
    SELECT k.job_type, k.key, k.reseller_id, k.merchant_id
    FROM job_keys AS k JOIN (SELECT DISTINCT job_type, key, reseller_id, merchant_id FROM keyed) AS w
         USING (job_type, key, reseller_id, merchant_id)
    ORDER BY k.job_type, k.key, k.reseller_id, k.merchant_id
    FOR NO KEY UPDATE OF k SKIP LOCKED
)
SELECT j.id
FROM keyed AS j JOIN job_keys AS k USING (job_type, key, reseller_id, merchant_id)
WHERE NOT EXISTS (SELECT FROM locked AS l WHERE (l.job_type, l.key, l.reseller_id, l.merchant_id)
                                                = (j.job_type, j.key, j.reseller_id, j.merchant_id))

-- name: lock_one
-- Lock a job that waits or runs, if this tenant may change it. A later statement decides what to do.
SELECT status, job_type, priority, concurrency_key FROM job_outbox
WHERE id = $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
FOR UPDATE

-- name: next_due
-- When the next job of each of these lanes is due, and the present time. What the last claim has seen, up to $4, is left out:
-- it was claimed, or is blocked, and a worker that counted it would spin. What came after that is not, also if it became due
-- meanwhile: the claim was too early for it, and no other would find it.
SELECT l.job_type, l.priority, l.keyed, statement_timestamp() AS seen_at,
       extract(epoch FROM j.run_at - clock_timestamp())::float8 AS due_in_s
FROM unnest($1::text[], $2::smallint[], $3::boolean[]) AS l (job_type, priority, keyed)
LEFT JOIN LATERAL (
    (SELECT o.run_at FROM job_outbox AS o
     WHERE NOT l.keyed AND o.status = 'PENDING' AND o.concurrency_key IS NULL
       AND o.job_type = l.job_type AND o.priority = l.priority AND o.run_at > $4
     ORDER BY o.run_at LIMIT 1)
    UNION ALL
    (SELECT o.run_at FROM job_outbox AS o
     WHERE l.keyed AND o.status = 'PENDING' AND o.concurrency_key IS NOT NULL AND NOT o.parked
       AND o.job_type = l.job_type AND o.priority = l.priority AND o.run_at > $4
     ORDER BY o.run_at LIMIT 1)
) AS j ON true

-- name: next_tick
-- How long until the next tick of these schedules.
SELECT extract(epoch FROM min(next_at) - clock_timestamp())::float8 FROM job_schedules WHERE name = ANY ($1::text[])

-- name: notify
-- Wake the workers. Alone in its transaction, which therefore waits for no lock and writes nothing to disk.
SELECT pg_notify($1, $2)

-- name: pause
-- Claim no more jobs of a type. Running ones go on.
INSERT INTO job_pauses (job_type, reason, paused_by) VALUES ($1, $2, $3)
ON CONFLICT (job_type) DO UPDATE SET reason = excluded.reason, paused_by = excluded.paused_by, paused_at = now()

-- name: pull_tick
-- The next tick of a schedule comes earlier than written, unless another transaction has moved it or is about to.
UPDATE job_schedules SET next_at = $3
WHERE name = (SELECT name FROM job_schedules WHERE name = $1 AND next_at = $2 FOR UPDATE SKIP LOCKED)

-- name: put_back
-- Put jobs back to PENDING, by pairs of id and fence: after a failure, a snooze, a shutdown or a lost lease. Locked rows are
-- skipped, as in `finish`. It waits for a unique key that an open transaction has just taken: callers put back jobs with
-- unique keys apart from others and limit the wait.
-- Deleted and inserted again instead of updated, because only an INSERT can meet a newer twin without an error: beside a
-- pending job with the same unique key the older one ends as superseded, in the same statement. One with a requested
-- cancellation ends as cancelled.
WITH free AS (
    SELECT j.place
    FROM unnest($1::uuid[], $2::bigint[]) AS e (id, fence) CROSS JOIN LATERAL (
        SELECT o.ctid AS place FROM job_outbox AS o
        WHERE o.id = e.id AND o.fence = e.fence AND ($3::text IS NULL OR o.locked_by = $3)
        LIMIT 1
        FOR UPDATE SKIP LOCKED) AS j
), gone AS (
    DELETE FROM job_outbox WHERE ctid = ANY (ARRAY(SELECT place FROM free)) RETURNING *
), ends AS (
    SELECT g.*, e.delay_s, e.counted, e.error_code, e.error_message
    FROM gone AS g JOIN unnest($1::uuid[], $4::float8[], $5::boolean[], $6::text[], $7::text[])
         AS e (id, delay_s, counted, error_code, error_message) ON e.id = g.id
), back AS (
    INSERT INTO job_outbox (id, run_at, created_at, fence, priority, attempt_count, max_attempts, job_type, unique_key,
                            concurrency_key, reseller_id, merchant_id, last_error_code, last_error_message, payload)
    SELECT e.id, coalesce(clock_timestamp() + make_interval(secs => e.delay_s), e.run_at), e.created_at, e.fence,
           e.priority, CASE WHEN e.counted THEN e.attempt_count ELSE greatest(e.attempt_count - 1, 0) END,
           e.max_attempts, e.job_type, e.unique_key, e.concurrency_key, e.reseller_id, e.merchant_id,
           coalesce(e.error_code, e.last_error_code), coalesce(e.error_message, e.last_error_message), e.payload
    FROM ends AS e
    WHERE NOT e.cancel_requested
    ORDER BY e.job_type, e.unique_key, e.reseller_id, e.merchant_id, e.id
    ON CONFLICT (job_type, unique_key, reseller_id, merchant_id)
        WHERE status = 'PENDING' AND unique_key IS NOT NULL AND NOT beside
    DO NOTHING
    RETURNING id, run_at
), ended AS (
    INSERT INTO job_history (id, created_at, started_at, finished_at, priority, attempt_count, max_attempts, job_type,
                             outcome, unique_key, concurrency_key, reseller_id, merchant_id, worker,
                             last_error_code, last_error_message)
    SELECT e.id, e.created_at, e.locked_at, clock_timestamp(), e.priority, e.attempt_count, e.max_attempts, e.job_type,
           CASE WHEN e.cancel_requested THEN 'cancelled' ELSE 'superseded' END, e.unique_key, e.concurrency_key,
           e.reseller_id, e.merchant_id, e.locked_by, coalesce(e.error_code, e.last_error_code),
           coalesce(e.error_message, e.last_error_message)
    FROM ends AS e
    WHERE e.id NOT IN (SELECT id FROM back)
    RETURNING id, outcome
)
SELECT e.id, e.job_type, e.priority, e.concurrency_key, e.reseller_id, e.merchant_id, b.run_at, d.outcome
FROM ends AS e LEFT JOIN back AS b ON b.id = e.id LEFT JOIN ended AS d ON d.id = e.id

-- name: recount_keys
-- Count what really runs under locked keys, in a later statement than the locks, and delete unused keys.
WITH counted AS (
    SELECT k.job_type, k.key, k.reseller_id, k.merchant_id, k.running,
           (SELECT count(*) FROM job_outbox AS o WHERE o.status = 'IN_PROGRESS' AND o.concurrency_key IS NOT NULL
            AND o.job_type = k.job_type AND o.concurrency_key = k.key
            AND coalesce(o.reseller_id, '') = k.reseller_id AND coalesce(o.merchant_id, '') = k.merchant_id)::int AS truth,
           EXISTS (SELECT FROM job_outbox AS o WHERE o.parked AND o.job_type = k.job_type AND o.concurrency_key = k.key
                   AND coalesce(o.reseller_id, '') = k.reseller_id
                   AND coalesce(o.merchant_id, '') = k.merchant_id) AS has_parked
    FROM job_keys AS k JOIN unnest($1::text[], $2::text[], $3::text[], $4::text[])
         AS w (job_type, key, reseller_id, merchant_id) USING (job_type, key, reseller_id, merchant_id)
), idle AS (
    DELETE FROM job_keys AS k USING counted AS c
    WHERE k.job_type = c.job_type AND k.key = c.key AND k.reseller_id = c.reseller_id AND k.merchant_id = c.merchant_id
      AND c.truth = 0 AND NOT c.has_parked
), corrected AS (
    UPDATE job_keys AS k SET running = c.truth FROM counted AS c
    WHERE k.job_type = c.job_type AND k.key = c.key AND k.reseller_id = c.reseller_id AND k.merchant_id = c.merchant_id
      AND k.running <> c.truth AND (c.truth > 0 OR c.has_parked)
)
SELECT job_type, key, reseller_id, merchant_id, running, truth, has_parked FROM counted

-- name: register_schedule
-- Register a schedule. A changed rule applies from now on; an unchanged one keeps its next tick.
INSERT INTO job_schedules AS s (name, job_type, rule, timezone, payload, next_at) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (name) DO UPDATE
SET job_type = excluded.job_type, rule = excluded.rule, timezone = excluded.timezone, payload = excluded.payload,
    next_at = CASE WHEN (s.rule, s.timezone) = (excluded.rule, excluded.timezone) THEN s.next_at
                   ELSE excluded.next_at END
WHERE (s.job_type, s.rule, s.timezone, s.payload)
      IS DISTINCT FROM (excluded.job_type, excluded.rule, excluded.timezone, excluded.payload)

-- name: renew
-- Renew leases, by pairs of id and fence. Pairs that are not returned are lost. A locked row is left as it is and returned: no
-- other worker can take it while it is locked. Returns also which jobs are to be cancelled.
WITH held AS (
    SELECT h.id, j.cancel_requested
    FROM unnest($1::uuid[], $2::bigint[]) AS h (id, fence) CROSS JOIN LATERAL (
        SELECT o.cancel_requested FROM job_outbox AS o
        WHERE o.id = h.id AND o.fence = h.fence AND o.locked_by = $3
        LIMIT 1) AS j
), free AS (
    SELECT j.place
    FROM unnest($1::uuid[], $2::bigint[]) AS h (id, fence) CROSS JOIN LATERAL (
        SELECT o.ctid AS place FROM job_outbox AS o
        WHERE o.id = h.id AND o.fence = h.fence AND o.locked_by = $3
        LIMIT 1
        FOR NO KEY UPDATE SKIP LOCKED) AS j
), renewed AS (
    UPDATE job_outbox SET lease_expires_at = clock_timestamp() + make_interval(secs => $4)
    WHERE ctid = ANY (ARRAY(SELECT place FROM free))
    RETURNING id
)
SELECT held.id, held.cancel_requested, renewed.id IS NOT NULL AS is_renewed FROM held LEFT JOIN renewed USING (id)

-- name: replay
-- Put dead letters back to PENDING, with all their attempts before them. Beside a pending job with the same unique key the
-- letter ends as superseded.
WITH gone AS (
    DELETE FROM job_dead WHERE id = ANY ($1::uuid[]) RETURNING *
), back AS (
    INSERT INTO job_outbox (id, run_at, created_at, fence, priority, max_attempts, job_type, unique_key,
                            concurrency_key, reseller_id, merchant_id, last_error_code, last_error_message, payload)
    SELECT id, clock_timestamp(), created_at, fence, priority, max_attempts, job_type, unique_key,
           concurrency_key, reseller_id, merchant_id, last_error_code, last_error_message, payload
    FROM gone
    ORDER BY job_type, unique_key, reseller_id, merchant_id, id
    ON CONFLICT (job_type, unique_key, reseller_id, merchant_id)
        WHERE status = 'PENDING' AND unique_key IS NOT NULL AND NOT beside
    DO NOTHING
    RETURNING id, job_type, priority, unique_key, concurrency_key, run_at
), ended AS (
    INSERT INTO job_history (id, created_at, finished_at, priority, attempt_count, max_attempts, job_type, outcome,
                             unique_key, concurrency_key, reseller_id, merchant_id, worker,
                             last_error_code, last_error_message)
    SELECT id, created_at, clock_timestamp(), priority, attempt_count, max_attempts, job_type, 'superseded',
           unique_key, concurrency_key, reseller_id, merchant_id, worker, last_error_code, last_error_message
    FROM gone WHERE id NOT IN (SELECT id FROM back)
)
SELECT * FROM back

-- name: resume
-- Claim jobs of a type again.
DELETE FROM job_pauses WHERE job_type = $1 RETURNING job_type

-- name: run_now
-- Let a waiting job run now instead of later.
UPDATE job_outbox SET run_at = least(run_at, clock_timestamp()) WHERE id = $1 AND status = 'PENDING'
RETURNING id, job_type, priority, unique_key, concurrency_key, run_at

-- name: survey
-- Every lane of these types with a waiting job, and its first one. From the very beginning: this finds a job whose wakeup was
-- lost or whose transaction was slow, and the price is stepping over what vacuum has not yet removed.
WITH RECURSIVE types AS (
    SELECT job_type FROM unnest($1::text[]) AS t (job_type)
    WHERE NOT EXISTS (SELECT FROM job_pauses AS p WHERE p.job_type = t.job_type)
), plain AS (
    SELECT t.job_type, j.priority, j.run_at, j.id
    FROM types AS t CROSS JOIN LATERAL (
        SELECT o.priority, o.run_at, o.id FROM job_outbox AS o
        WHERE o.status = 'PENDING' AND o.concurrency_key IS NULL AND o.job_type = t.job_type
        ORDER BY o.priority, o.run_at, o.id LIMIT 1) AS j
    UNION ALL
    SELECT l.job_type, j.priority, j.run_at, j.id
    FROM plain AS l CROSS JOIN LATERAL (
        SELECT o.priority, o.run_at, o.id FROM job_outbox AS o
        WHERE o.status = 'PENDING' AND o.concurrency_key IS NULL AND o.job_type = l.job_type
          AND o.priority > l.priority
        ORDER BY o.priority, o.run_at, o.id LIMIT 1) AS j
), keyed AS (
    SELECT t.job_type, j.priority, j.run_at, j.id
    FROM types AS t CROSS JOIN LATERAL (
        SELECT o.priority, o.run_at, o.id FROM job_outbox AS o
        WHERE o.status = 'PENDING' AND o.concurrency_key IS NOT NULL AND NOT o.parked AND o.job_type = t.job_type
        ORDER BY o.priority, o.run_at, o.id LIMIT 1) AS j
    UNION ALL
    SELECT l.job_type, j.priority, j.run_at, j.id
    FROM keyed AS l CROSS JOIN LATERAL (
        SELECT o.priority, o.run_at, o.id FROM job_outbox AS o
        WHERE o.status = 'PENDING' AND o.concurrency_key IS NOT NULL AND NOT o.parked AND o.job_type = l.job_type
          AND o.priority > l.priority
        ORDER BY o.priority, o.run_at, o.id LIMIT 1) AS j
)
SELECT job_type, priority, false AS keyed, run_at, id,
       extract(epoch FROM run_at - clock_timestamp())::float8 AS due_in_s FROM plain
UNION ALL
SELECT job_type, priority, true, run_at, id,
       extract(epoch FROM run_at - clock_timestamp())::float8 FROM keyed

-- name: types
-- The counts of each type: waiting and dead jobs, counted up to a limit, and whether it is paused. Counting all of a large
-- backlog again and again would cost more than the jobs themselves. In the order of the indexes, which are then used: a type
-- without jobs would be searched in the whole table.
SELECT t.job_type, p.reason AS paused_reason, p.paused_by, p.paused_at,
       (SELECT count(*) FROM (SELECT FROM job_outbox AS o WHERE o.status = 'PENDING' AND o.concurrency_key IS NULL
                              AND o.job_type = t.job_type ORDER BY o.priority, o.run_at, o.id LIMIT $2) AS x)
       + (SELECT count(*) FROM (SELECT FROM job_outbox AS o WHERE o.status = 'PENDING' AND NOT o.parked
                                AND o.concurrency_key IS NOT NULL AND o.job_type = t.job_type
                                ORDER BY o.priority, o.run_at, o.id LIMIT $2) AS x)
       + (SELECT count(*) FROM (SELECT FROM job_outbox AS o WHERE o.parked AND o.job_type = t.job_type
                                ORDER BY o.concurrency_key, o.priority, o.run_at LIMIT $2) AS x)
       AS pending,
       (SELECT count(*) FROM (SELECT FROM job_dead AS d WHERE d.job_type = t.job_type ORDER BY d.id LIMIT $2) AS x) AS dead
FROM unnest($1::text[]) AS t (job_type) LEFT JOIN job_pauses AS p USING (job_type)

-- name: unknown_held
-- Jobs that this worker owns and does not know: the reply to its claim was lost.
SELECT id, fence, unique_key FROM job_outbox
WHERE status = 'IN_PROGRESS' AND locked_by = $1 AND NOT (id = ANY ($2::uuid[]))
FOR UPDATE SKIP LOCKED

-- name: unpark
-- Unpark jobs with capacity under these keys, in a later statement than their locks: a job that was parked while this waited
-- for the lock must be seen.
UPDATE job_outbox SET parked = false
WHERE id = ANY (ARRAY(
    SELECT j.id
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::int[])
         AS f (job_type, key, reseller_id, merchant_id, running_max)
    JOIN job_keys AS k USING (job_type, key, reseller_id, merchant_id)
    CROSS JOIN LATERAL (
        SELECT o.id FROM job_outbox AS o
        WHERE o.parked AND o.job_type = f.job_type AND o.concurrency_key = f.key
          AND coalesce(o.reseller_id, '') = f.reseller_id AND coalesce(o.merchant_id, '') = f.merchant_id
        ORDER BY o.priority, o.run_at, o.id
        LIMIT greatest(f.running_max - k.running, 0)
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS j))
RETURNING job_type, priority, run_at

-- name: vacuum
-- Remove dead rows now. Autovacuum runs once a minute at best, and a busy minute is 100,000 rows.
VACUUM (SKIP_LOCKED, INDEX_CLEANUP ON, TRUNCATE OFF, PARALLEL 0) job_outbox

-- name: write_progress
-- The last progress of running jobs. A report on a job with another owner by now is dropped.
INSERT INTO job_progress (job_id, fraction, note)
SELECT o.id, p.fraction, p.note
FROM unnest($1::uuid[], $2::bigint[], $3::real[], $4::text[]) AS p (id, fence, fraction, note)
JOIN job_outbox AS o ON o.id = p.id AND o.fence = p.fence
ORDER BY o.id
ON CONFLICT (job_id) DO UPDATE SET fraction = excluded.fraction, note = excluded.note, updated_at = now()
