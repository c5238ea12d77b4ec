-- name: by_request
-- The series that an earlier request made.
SELECT *, pool_id AS pool, clock_timestamp() AS now FROM reminders WHERE merchant_id = $1 AND request_id = $2

-- name: changed
-- Occurrences whose lead has changed since it was last read, with the lead, its newest attempt, and the numbers of all of them
-- in order. Each is locked by one process; the others skip it. Leads are read and not locked: their next change is read next
-- time.
SELECT o.id, o.reminder_id, o.state, o.attempt_count, o.external_call_id, o.last_error, o.max_attempts, o.attempts_told,
       o.retries_told,
       l.version AS lead_version, l.status AS lead_status, l.outcome, l.outcome_reason, l.due_at,
       l.attempt_count AS lead_attempts, l.carrier_error_count, l.no_agent_count, a.id AS attempt_id, a.carrier_call_id, a.answered_at,
       a.end_reason, a.agent, a.attempt_no,
       -- Without those that were never dialled and only record that a COMMIT was lost.
       ARRAY(SELECT t.attempt_no FROM attempts AS t
             WHERE t.lead_id = l.id AND (t.ordinal > 0 OR t.state <> 'rejected')
             ORDER BY t.ordinal, t.intent_at) AS attempt_nos
FROM reminder_occurrences AS o
JOIN leads AS l ON l.id = o.lead_id
LEFT JOIN LATERAL (
    SELECT * FROM attempts WHERE lead_id = l.id ORDER BY ordinal DESC, attempt_no DESC, id DESC LIMIT 1
) AS a ON true
WHERE o.state IN ('SCHEDULED', 'PROCESSING', 'PENDING_RETRY')
  AND (l.version <> o.lead_version OR a.carrier_call_id IS DISTINCT FROM o.external_call_id)
ORDER BY o.id
LIMIT $1
FOR NO KEY UPDATE OF o SKIP LOCKED

-- name: claim
-- One of the due series, locked until the transaction ends; no row if another process has it, or has made its occurrence.
SELECT *, pool_id AS pool, clock_timestamp() AS now FROM reminders
WHERE id = $1 AND status = 'ACTIVE' AND next_at <= clock_timestamp() + make_interval(secs => $2)
FOR NO KEY UPDATE SKIP LOCKED

-- name: due
-- Series whose next occurrence is due within the horizon, oldest first: read without a lock, so that several processes may
-- read at once. The first one claims.
SELECT id FROM reminders
WHERE status = 'ACTIVE' AND next_at <= clock_timestamp() + make_interval(secs => $1)
ORDER BY next_at, id
LIMIT $2

-- name: edit
-- Message and attempts, from the next occurrence on. NULL means unchanged.
UPDATE reminders
SET message = coalesce($2, message), assistant_id = coalesce($3, assistant_id), payload = coalesce($4, payload),
    priority = coalesce($5, priority), max_attempts = coalesce($6, max_attempts), late_s = coalesce($7, late_s),
    updated_at = clock_timestamp()
WHERE id = $1
RETURNING *, pool_id AS pool, clock_timestamp() AS now

-- name: finish
-- End series without an occurrence left to make or to ring; one of them ($1), or all (NULL).
UPDATE reminders AS r
SET status = 'ENDED', ended_reason = 'finished', next_wall = NULL, updated_at = clock_timestamp()
WHERE r.status = 'ACTIVE' AND r.next_at IS NULL AND ($1::uuid IS NULL OR r.id = $1)
  AND NOT EXISTS (SELECT FROM reminder_occurrences AS o
                  WHERE o.reminder_id = r.id AND o.state IN ('SCHEDULED', 'PROCESSING', 'PENDING_RETRY'))
RETURNING *, pool_id AS pool, clock_timestamp() AS now

-- name: get
-- A series that the tenant may see.
SELECT *, pool_id AS pool, clock_timestamp() AS now FROM reminders
WHERE id = $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)

-- name: give_lead
-- The lead of an occurrence, or the reason why there is none.
UPDATE reminder_occurrences
SET lead_id = $2, lead_version = coalesce($3, 0), state = CASE WHEN $2::uuid IS NULL THEN 'FAILED' ELSE state END,
    last_error = $4, updated_at = clock_timestamp()
WHERE id = $1

-- name: insert
-- A new series; no row if the merchant has sent this request_id before.
INSERT INTO reminders (
    id, reseller_id, merchant_id, request_id, request_hash, phone, timezone, starts_at, rrule, message, assistant_id,
    payload, carrier, pool_id, has_windows, priority, max_attempts, late_s, reporting_webhook_url, next_wall, next_at,
    next_no
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)
ON CONFLICT (merchant_id, request_id) DO NOTHING
RETURNING *, pool_id AS pool, clock_timestamp() AS now

-- name: insert_occurrence
-- An occurrence, once. No row: it was made or skipped before.
INSERT INTO reminder_occurrences
    (id, reminder_id, reseller_id, merchant_id, wall_at, scheduled_at, state, skip_reason, max_attempts, last_error)
SELECT $1, r.id, r.reseller_id, r.merchant_id, $3, $4, $5, $6, $7, $8 FROM reminders AS r WHERE r.id = $2
ON CONFLICT (reminder_id, wall_at) DO NOTHING
RETURNING id

-- name: known_walls
-- Which of these wall times have an occurrence already: made, or skipped ahead of their time.
SELECT wall_at, state FROM reminder_occurrences WHERE reminder_id = $1 AND wall_at = ANY ($2::timestamp[])

-- name: list
-- Series of a tenant, newest first.
SELECT *, pool_id AS pool, clock_timestamp() AS now FROM reminders
WHERE id < $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
  AND ($4::text IS NULL OR merchant_id = $4) AND ($5::text IS NULL OR status = $5) AND ($6::text IS NULL OR phone = $6)
ORDER BY id DESC
LIMIT $7

-- name: lock
-- A series that the tenant may change, locked until the transaction ends: no process makes an occurrence of it meanwhile.
SELECT *, pool_id AS pool, clock_timestamp() AS now FROM reminders
WHERE id = $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
FOR NO KEY UPDATE

-- name: move
-- The position of a locked series, and its status.
UPDATE reminders
SET status = $2, ended_reason = $3, next_wall = $4, next_at = $5, next_no = $6, last_at = $7,
    updated_at = clock_timestamp()
WHERE id = $1
RETURNING *, pool_id AS pool, clock_timestamp() AS now

-- name: occurrences
-- Occurrences of a series, newest first.
SELECT * FROM reminder_occurrences
WHERE reminder_id = $1 AND wall_at < $2::timestamp
ORDER BY wall_at DESC
LIMIT $3

-- name: open_leads
-- Leads of a series whose occurrences have not ended, or of one occurrence.
SELECT o.id, o.lead_id, o.wall_at FROM reminder_occurrences AS o
WHERE o.reminder_id = $1 AND o.lead_id IS NOT NULL AND ($2::timestamp IS NULL OR o.wall_at = $2)
  AND o.state IN ('SCHEDULED', 'PROCESSING', 'PENDING_RETRY')
ORDER BY o.lead_id

-- name: pool
-- The pool that dials a merchant's reminders: the named one, or the nearest of those whose numbers are all at the carrier: its
-- default, its own, its reseller's, the platform's.
SELECT p.id
FROM merchants AS m
JOIN pools AS p ON p.reseller_id IS NULL
    OR (p.reseller_id = m.reseller_id AND (p.merchant_id IS NULL OR p.merchant_id = m.id))
WHERE m.id = $1 AND ($2::text IS NULL OR p.id = $2)
  AND ($3::text IS NULL
       OR (SELECT bool_and(n.carrier = $3) FROM numbers AS n WHERE n.pool_id = p.id AND n.status = 'active'))
ORDER BY p.id = m.default_pool_id DESC NULLS LAST, p.merchant_id IS NULL, p.reseller_id IS NULL, p.id
LIMIT 1

-- name: pause_broken
-- Pause a broken series, so that it does not block others. It keeps its position, and may be resumed.
UPDATE reminders SET status = 'PAUSED', next_at = NULL, updated_at = clock_timestamp()
WHERE id = $1 AND status = 'ACTIVE'

-- name: skip
-- Occurrences whose leads were ended before they rang.
UPDATE reminder_occurrences
SET state = 'SKIPPED', skip_reason = $2, next_retry_at = NULL, updated_at = clock_timestamp()
WHERE lead_id = ANY ($1::uuid[]) AND state IN ('SCHEDULED', 'PENDING_RETRY')
RETURNING id

-- name: waiting
-- Occurrences of these series that wait as leads, for their time or for a retry, in the order in which they ring.
SELECT o.reminder_id, o.lead_id, o.wall_at, l.due_at
FROM reminder_occurrences AS o JOIN leads AS l ON l.id = o.lead_id
WHERE o.reminder_id = ANY ($1::uuid[]) AND o.state IN ('SCHEDULED', 'PROCESSING', 'PENDING_RETRY') AND l.status = 'BACKLOG'
ORDER BY l.due_at, o.wall_at

-- name: write_states
-- Write the states of occurrences, from the states of their leads.
UPDATE reminder_occurrences AS o
SET state = s.state, lead_version = s.lead_version, attempt_count = s.attempt_count, next_retry_at = s.next_retry_at,
    last_error = s.last_error, idempotency_key = coalesce(s.idempotency_key, o.idempotency_key),
    external_call_id = s.external_call_id, attempts_told = s.attempts_told, retries_told = s.retries_told,
    updated_at = clock_timestamp()
FROM unnest($1::uuid[], $2::text[], $3::int[], $4::smallint[], $5::timestamptz[], $6::text[], $7::text[], $8::text[],
            $9::smallint[], $10::smallint[])
     AS s (id, state, lead_version, attempt_count, next_retry_at, last_error, idempotency_key, external_call_id,
           attempts_told, retries_told)
WHERE o.id = s.id
