-- name: abort
-- End locked leads that wait: they are not to be called any more.
UPDATE leads
SET status = 'FINISHED', outcome = 'ABORTED', outcome_reason = $2, version = version + 1, finished_at = now(),
    updated_at = now()
WHERE id = ANY($1::uuid[]) AND status = 'BACKLOG'
RETURNING *, pool_id AS pool

-- name: admissions
-- What ingest needs of merchants, in one read: their region, the named or default pool, and every layer of calling policy
-- that applies. The pool is NULL where there is none that this merchant may use: its own, its reseller's, or the platform's.
-- $1, $2 the tenant   $3 merchants   $4 pools or NULL   $5 campaigns or NULL
SELECT requested.nth, m.id AS merchant_id, m.reseller_id, m.default_region, p.id AS pool_id, clock_timestamp() AS now,
       ARRAY[(SELECT policy::text FROM policies WHERE scope = 'platform' AND subject = ''),
             (SELECT policy::text FROM policies WHERE scope = 'reseller' AND subject = m.reseller_id),
             (SELECT policy::text FROM policies WHERE scope = 'merchant' AND subject = m.id),
             (SELECT policy::text FROM policies WHERE scope = 'campaign' AND subject = m.id || '/' || requested.campaign_id)
       ] AS policy
FROM unnest($3::text[], $4::text[], $5::uuid[]) WITH ORDINALITY AS requested (merchant_id, pool_id, campaign_id, nth)
JOIN merchants AS m ON m.id = requested.merchant_id
LEFT JOIN pools AS p
    ON p.id = coalesce(requested.pool_id, m.default_pool_id)
   AND (p.reseller_id IS NULL
        OR (p.reseller_id = m.reseller_id AND (p.merchant_id IS NULL OR p.merchant_id = m.id)))
WHERE ($1::text IS NULL OR m.reseller_id = $1) AND ($2::text IS NULL OR m.id = $2)

-- name: attempts
-- Every attempt to call a lead, in order, with its agent's report and the addresses of its recordings; when its lead was due,
-- since when all that it needs was available, when it left (NULL: it never did), how long it waited and how late it was.
SELECT a.*, a.lead_due_at AS due_at, sent.at AS sent_at,
       extract(epoch FROM greatest(a.ready_at - a.lead_due_at, interval '0'))::float8 AS waited_s,
       extract(epoch FROM greatest(sent.at - coalesce(a.ready_at, a.lead_due_at), interval '0'))::float8 AS late_s,
       to_jsonb(r) - 'attempt_id' AS report,
       ARRAY(SELECT c.ref FROM call_recordings AS c WHERE c.attempt_id = a.id ORDER BY c.kept_at, c.ref) AS recordings
FROM attempts AS a
CROSS JOIN LATERAL (
    SELECT CASE WHEN a.state = 'rejected' AND a.end_reason LIKE 'not\_sent%' THEN NULL ELSE a.send_at END AS at) AS sent
LEFT JOIN call_reports AS r ON r.attempt_id = a.id
WHERE a.lead_id = $1
ORDER BY a.ordinal, a.attempt_no, a.intent_at

-- name: by_request
-- The lead that an earlier request with this id made.
SELECT *, pool_id AS pool FROM leads WHERE merchant_id = $1 AND request_id = $2

-- name: cancel
-- Locked leads that are being called: they end with this call. The first reason stays.
UPDATE leads
SET cancel_requested_at = coalesce(cancel_requested_at, now()), cancel_reason = coalesce(cancel_reason, $2),
    version = version + 1, updated_at = now()
WHERE id = ANY($1::uuid[]) AND status = 'PROCESSING'
RETURNING *, pool_id AS pool

-- name: count_ended
-- How many leads `list_ended` finds, counted up to a limit. Same parameters, without the page.
SELECT count(*) FROM (
    SELECT 1
    FROM merchants AS m
    JOIN leads AS l ON l.merchant_id = m.id AND l.status = 'FINISHED' AND l.outcome = ANY($6::text[])
                   AND l.finished_at >= $7 AND l.finished_at < $8
    WHERE ($1::text IS NULL OR m.reseller_id = $1) AND ($2::text IS NULL OR m.id = $2) AND ($3::text IS NULL OR m.id = $3)
      AND ($4::uuid IS NULL OR l.campaign_id = $4) AND ($5::text IS NULL OR l.phone = $5)
      AND NOT EXISTS (SELECT FROM lead_reopenings AS r WHERE r.lead_id = l.id AND r.request_id = $9)
    LIMIT $10) AS counted

-- name: due_now
-- A locked, waiting lead is due at once. Its window is unknown here, so it is left out: the dial checks it.
UPDATE leads
SET due_at = now(), scheduled_at = least(scheduled_at, now()), closes_at = NULL, version = version + 1, updated_at = now()
WHERE id = $1
RETURNING *, pool_id AS pool

-- name: edit
-- Change the named fields of a locked, waiting lead. The new version makes every older grant and entry stale.
-- $2 priority  $3 pool  $4 payload  $5 attempts  $6, $7 webhook and whether it was named
-- $8 whether it is rescheduled, $9 the requested time, $10 when it is due, $11 when its window closes
-- $12, $13 when it expires and whether that was named
UPDATE leads
SET priority              = coalesce($2, priority),
    pool_id               = coalesce($3, pool_id),
    payload               = coalesce($4, payload),
    max_attempts          = coalesce($5, max_attempts),
    reporting_webhook_url = CASE WHEN $7 THEN $6 ELSE reporting_webhook_url END,
    scheduled_at          = CASE WHEN $8 THEN greatest($9, now()) ELSE scheduled_at END,
    due_at                = CASE WHEN $8 THEN greatest(coalesce($10, $9), now()) ELSE due_at END,
    closes_at             = CASE WHEN $8 THEN $11 ELSE closes_at END,
    expires_at            = CASE WHEN $13 THEN $12 ELSE expires_at END,
    version               = version + 1,
    updated_at            = now()
WHERE id = $1
RETURNING *, pool_id AS pool

-- name: get
-- One lead of the tenant.
SELECT *, pool_id AS pool FROM leads
WHERE id = $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)

-- name: ids_by_request
-- The leads that these requests of one merchant made, by the key that makes requests idempotent.
SELECT id, request_id FROM leads
WHERE merchant_id = $3 AND request_id = ANY($4::text[])
  AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)

-- name: insert
-- A new lead; no row if the merchant has sent this request_id before, or if the person is on a do-not-call list. Postgres
-- decides what "now" is: a time that has passed, or none, is now. A lead that is requested now and waits for its window has
-- the reason from the start.
WITH new AS (
    INSERT INTO leads (
        id, reseller_id, merchant_id, request_id, request_hash, phone, timezone, payload, campaign_id, pool_id, priority,
        max_attempts, reporting_webhook_url, scheduled_at, due_at, closes_at, expires_at
    )
    SELECT $1::uuid, $2::text, $3::text, $4::text, $5::bytea, $6::text, $7::text, $8::text::jsonb, $9::uuid, $10::text,
           $11::smallint, $12::smallint, $13::text, greatest($14::timestamptz, now()),
           greatest(coalesce($15::timestamptz, $14), now()), $16::timestamptz, $18::timestamptz
    WHERE NOT EXISTS (
        SELECT FROM do_not_call AS d
        WHERE d.phone = $6 AND (d.expires_at IS NULL OR d.expires_at > now())
          AND (d.reseller_id IS NULL OR (d.reseller_id = $2 AND (d.merchant_id IS NULL OR d.merchant_id = $3))))
    ON CONFLICT (merchant_id, request_id) DO NOTHING
    RETURNING *
), refusals AS (
    INSERT INTO decisions (lead_id, reason, merchant_id, until)
    SELECT id, 'window', merchant_id, due_at FROM new WHERE $17::boolean
)
SELECT *, pool_id AS pool FROM new

-- name: is_cancelled
-- Was a lead cancelled while it is being called?
SELECT cancel_requested_at IS NOT NULL FROM leads WHERE id = $1

-- name: is_listed
-- Whether this person is on a do-not-call list: the merchant's, its reseller's, or the platform's.
SELECT EXISTS (
    SELECT FROM do_not_call AS d
    WHERE d.phone = $1 AND (d.expires_at IS NULL OR d.expires_at > now())
      AND (d.reseller_id IS NULL OR (d.reseller_id = $2 AND (d.merchant_id IS NULL OR d.merchant_id = $3))))

-- name: list_of
-- Leads to one phone, or of the whole platform ({whose}), newest first.
SELECT *, pool_id AS pool FROM leads
WHERE {whose}
  AND id < $7::uuid
  AND ($1::text IS NULL OR reseller_id = $1)
  AND ($2::text IS NULL OR merchant_id = $2)
  AND ($3::text IS NULL OR merchant_id = $3)
  AND ($4::uuid IS NULL OR campaign_id = $4)
  AND ($5::text IS NULL OR phone = $5)
  AND status = ANY($6::text[])
ORDER BY id DESC
LIMIT $8

-- name: list_by
-- Leads of one campaign, merchant or reseller, or the unfinished ones of the platform ({whose}), newest first: a page of each
-- status, of which the newest are taken. Lists of one (`= ANY`) keep the whole key in the order: a plain `=` would leave `id`
-- alone, and the planner would take the primary key and read through other leads. One statement per leading key: a filter that
-- may be NULL is no use to an index.
SELECT l.*
FROM unnest($6::text[]) AS wanted (status)
CROSS JOIN LATERAL (
    SELECT *, pool_id AS pool FROM leads
    WHERE {whose} AND status = ANY(ARRAY[wanted.status]) AND id < $7::uuid
      AND ($1::text IS NULL OR reseller_id = $1)
      AND ($2::text IS NULL OR merchant_id = $2)
      AND ($3::text IS NULL OR merchant_id = $3)
      AND ($4::uuid IS NULL OR campaign_id = $4)
      AND ($5::text IS NULL OR phone = $5)
    ORDER BY {key}
    LIMIT $8) AS l
ORDER BY l.id DESC
LIMIT $8

-- name: list_by_request
-- The leads that requests with one id made: one at most of each merchant, found merchant by merchant through the key that
-- makes requests idempotent. An index of request ids alone would be written with every lead, for a rare query of people.
-- $1, $2 whose   $3 merchant   $4 request   $5 campaign   $6 phone   $7 statuses   $8 before   $9 how many
SELECT l.*, l.pool_id AS pool
FROM merchants AS m
JOIN leads AS l ON l.merchant_id = m.id AND l.request_id = $4
WHERE ($1::text IS NULL OR m.reseller_id = $1)
  AND ($2::text IS NULL OR m.id = $2)
  AND ($3::text IS NULL OR m.id = $3)
  AND ($5::uuid IS NULL OR l.campaign_id = $5)
  AND ($6::text IS NULL OR l.phone = $6)
  AND l.status = ANY($7::text[])
  AND l.id < $8::uuid
ORDER BY l.id DESC
LIMIT $9

-- name: list_ended
-- Leads of the tenant that ended in one of these ways between two times, oldest end first, without those that this order has
-- reopened before. Merchant by merchant, each through its own part of the index: other merchants' leads cost nothing.
-- $1, $2 the tenant  $3 merchant or NULL  $4 campaign or NULL  $5 phone or NULL  $6 outcomes  $7, $8 since, before
-- $9 the request id of the order  $10, $11 where the last page ended  $12 limit
SELECT l.*
FROM merchants AS m
CROSS JOIN unnest($6::text[]) AS wanted (outcome)
CROSS JOIN LATERAL (
    SELECT *, pool_id AS pool FROM leads
    WHERE status = 'FINISHED' AND merchant_id = m.id AND leads.outcome = wanted.outcome
      AND finished_at >= $7 AND finished_at < $8 AND (finished_at, id) > ($10::timestamptz, $11::uuid)
      AND ($4::uuid IS NULL OR campaign_id = $4) AND ($5::text IS NULL OR phone = $5)
      AND NOT EXISTS (SELECT FROM lead_reopenings AS r WHERE r.lead_id = leads.id AND r.request_id = $9)
    ORDER BY finished_at, id
    LIMIT $12) AS l
WHERE ($1::text IS NULL OR m.reseller_id = $1) AND ($2::text IS NULL OR m.id = $2) AND ($3::text IS NULL OR m.id = $3)
ORDER BY l.finished_at, l.id
LIMIT $12

-- name: list_finished
-- Finished leads of the whole platform, newest first: a page of each reseller, of which the newest are taken (see `list_by`).
-- The primary key would read through all waiting leads. None of the other filters is given here: each has a list of its own.
SELECT l.*
FROM resellers AS r
CROSS JOIN LATERAL (
    SELECT *, pool_id AS pool FROM leads
    WHERE reseller_id = ANY(ARRAY[r.id]) AND status = ANY(ARRAY['FINISHED']) AND id < $7::uuid
    ORDER BY reseller_id DESC, status DESC, id DESC
    LIMIT $8) AS l
WHERE $1::text IS NULL AND $2::text IS NULL AND $3::text IS NULL AND $4::uuid IS NULL AND $5::text IS NULL
  AND 'FINISHED' = ANY($6::text[])
ORDER BY l.id DESC
LIMIT $8

-- name: load
-- Staged rows become leads, as `insert` makes one. Of several rows with one request_id the first counts. They are inserted by
-- key: two uploads of the same rows in another order would otherwise wait for each other.
WITH new AS (
    INSERT INTO leads (
        id, reseller_id, merchant_id, request_id, request_hash, phone, timezone, payload, campaign_id, pool_id, priority,
        max_attempts, reporting_webhook_url, scheduled_at, due_at, closes_at, expires_at
    )
    SELECT DISTINCT ON (s.merchant_id, s.request_id)
           s.id, s.reseller_id, s.merchant_id, s.request_id, s.request_hash, s.phone, s.timezone, s.payload::jsonb,
           s.campaign_id, s.pool_id, s.priority, s.max_attempts, s.reporting_webhook_url,
           greatest(s.scheduled_at, now()), greatest(coalesce(s.due_at, s.scheduled_at), now()), s.closes_at,
           s.expires_at
    FROM staged_leads AS s
    WHERE NOT EXISTS (
        SELECT FROM do_not_call AS d
        WHERE d.phone = s.phone AND (d.expires_at IS NULL OR d.expires_at > now())
          AND (d.reseller_id IS NULL
               OR (d.reseller_id = s.reseller_id AND (d.merchant_id IS NULL OR d.merchant_id = s.merchant_id))))
    ORDER BY s.merchant_id, s.request_id, s.row_no
    ON CONFLICT (merchant_id, request_id) DO NOTHING
    RETURNING id, merchant_id, due_at
), refusals AS (
    INSERT INTO decisions (lead_id, reason, merchant_id, until)
    SELECT new.id, 'window', new.merchant_id, new.due_at
    FROM new JOIN staged_leads AS s ON s.id = new.id
    WHERE s.is_deferred
)
SELECT count(*) FROM new

-- name: load_skipped
-- The staged rows that made no new lead: with the lead that has their request_id, or none, where the person is on a list. In a
-- later statement than `load`: a lead that it waited for is not in its snapshot.
SELECT s.row_no, known.id, known.request_hash = s.request_hash AS is_same,
       EXISTS (SELECT FROM do_not_call AS d
               WHERE d.phone = s.phone AND (d.expires_at IS NULL OR d.expires_at > now())
                 AND (d.reseller_id IS NULL
                      OR (d.reseller_id = s.reseller_id AND (d.merchant_id IS NULL OR d.merchant_id = s.merchant_id)))
       ) AS is_listed
FROM staged_leads AS s
LEFT JOIN LATERAL (
    SELECT l.id, l.request_hash FROM leads AS l
    WHERE l.merchant_id = s.merchant_id AND l.request_id = s.request_id LIMIT 1) AS known ON true
WHERE known.id IS DISTINCT FROM s.id

-- name: lock
-- Leads of the tenant, locked in id order until the transaction ends. Dialers skip a locked lead.
SELECT *, pool_id AS pool FROM leads
WHERE id = ANY($3::uuid[]) AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
ORDER BY id
FOR NO KEY UPDATE

-- name: reopen
-- Locked, finished leads wait again, by a person's order. How each had ended is stored with the order, and the order is
-- numbered. The new version makes every older grant and entry stale. Failures of the platform or its carriers are reset
-- (carrier errors, missing agents); calls to the person are not: attempts go on counting. An expiry applied to the first time
-- only.
-- The occurrence of a reminder follows its lead again.
-- $1-$5 leads: when each is wanted and due, when its window closes, attempts at most   $6 request id  $7 reason  $8 actor
WITH wanted AS (
    SELECT * FROM unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[], $4::timestamptz[], $5::smallint[])
                  AS w (id, wanted_at, due_at, closes_at, max_attempts)
), ordered AS (
    INSERT INTO lead_reopenings (lead_id, reseller_id, merchant_id, no, request_id, reason, actor, outcome, outcome_reason,
                                 finished_at)
    SELECT l.id, l.reseller_id, l.merchant_id, l.reopen_count + 1, $6, $7, $8, l.outcome, l.outcome_reason, l.finished_at
    FROM leads AS l JOIN wanted AS w ON w.id = l.id
    WHERE l.status = 'FINISHED'
), followed AS (
    UPDATE reminder_occurrences AS o
    SET state = 'PENDING_RETRY', next_retry_at = w.due_at, updated_at = clock_timestamp()
    FROM wanted AS w
    WHERE o.lead_id = w.id AND o.state IN ('COMPLETED', 'FAILED')
)
UPDATE leads AS l
SET status = 'BACKLOG', outcome = NULL, outcome_reason = NULL, finished_at = NULL, reopen_count = l.reopen_count + 1,
    scheduled_at = greatest(w.wanted_at, now()), due_at = greatest(w.due_at, w.wanted_at, now()), closes_at = w.closes_at,
    expires_at = NULL, max_attempts = w.max_attempts, carrier_error_count = 0, no_agent_count = 0, cancel_requested_at = NULL,
    cancel_reason = NULL, version = l.version + 1, updated_at = clock_timestamp()
FROM wanted AS w
WHERE l.id = w.id AND l.status = 'FINISHED'
RETURNING l.*, l.pool_id AS pool

-- name: reopening
-- One order to call a lead again.
SELECT * FROM lead_reopenings WHERE lead_id = $1 AND no = $2

-- name: reopening_facts
-- The facts that decide whether locked leads may be called again, beside their own rows.
-- $1 leads  $2 the request id of the order
SELECT l.id,
       EXISTS (SELECT FROM lead_reopenings AS r WHERE r.lead_id = l.id AND r.request_id = $2) AS is_repeat,
       EXISTS (SELECT FROM attempts AS a
               WHERE a.lead_id = l.id AND a.state IN ('dialing', 'in_doubt', 'accepted', 'ringing', 'answered')) AS is_live,
       ARRAY(SELECT a.id FROM attempts AS a WHERE a.lead_id = l.id AND a.state = 'unknown' ORDER BY a.id) AS unknown_attempts,
       -- The carrier was queried about its last call, and had none.
       coalesce((SELECT a.state = 'absent' FROM attempts AS a
                 WHERE a.lead_id = l.id ORDER BY a.ordinal DESC, a.intent_at DESC LIMIT 1), false) AS is_last_absent,
       EXISTS (SELECT FROM do_not_call AS d
               WHERE d.phone = l.phone AND (d.expires_at IS NULL OR d.expires_at > now())
                 AND (d.reseller_id IS NULL OR (d.reseller_id = l.reseller_id
                                                AND (d.merchant_id IS NULL OR d.merchant_id = l.merchant_id)))) AS is_listed,
       c.status AS campaign_status
FROM leads AS l
LEFT JOIN campaigns AS c ON c.id = l.campaign_id AND c.merchant_id = l.merchant_id
WHERE l.id = ANY($1::uuid[])

-- name: stage
-- A table for the rows of an upload, dropped with its transaction. The payload is text here: binary COPY takes it as it is.
CREATE TEMPORARY TABLE staged_leads (
    row_no                 int NOT NULL,
    id                     uuid NOT NULL,
    reseller_id            text NOT NULL,
    merchant_id            text NOT NULL,
    request_id             text NOT NULL,
    request_hash           bytea NOT NULL,
    phone                  text NOT NULL,
    timezone               text,
    payload                text NOT NULL,
    campaign_id            uuid,
    pool_id                text NOT NULL,
    priority               smallint NOT NULL,
    max_attempts           smallint NOT NULL,
    reporting_webhook_url  text,
    scheduled_at           timestamptz,
    due_at                 timestamptz,
    closes_at              timestamptz,
    is_deferred            boolean NOT NULL,
    expires_at             timestamptz
) ON COMMIT DROP

-- name: timeline
-- All events of a lead, from all tables that record them: of itself, of its attempts, from the carrier and the agent, its
-- changes, its refusals, and the jobs that followed. Duplicate reports on an attempt (a webhook and a response, a webhook and
-- a lookup) are one row. `at` is our clock, when we acted or received it; `carrier_at` is the carrier's clock. The order is
-- made in `leads/timeline.py`.
WITH message AS (
    -- The unique keys of the jobs and messages of each end, and of each order.
    SELECT '' AS report, '' AS delivery
    UNION ALL
    SELECT concat('/', r.no, reported.report), concat('_', r.no, reported.delivery)
    FROM lead_reopenings AS r CROSS JOIN (VALUES ('', ''), ('/reopened', '_reopened')) AS reported (report, delivery)
    WHERE r.lead_id = $1
), reported AS MATERIALIZED (
    SELECT a.id AS attempt_id, a.ordinal, e.type, min(e.created_at) AS at,
           min(e.payload ->> 'at') FILTER (WHERE NOT e.payload ? 'is_our_clock') AS carrier_at,
           max(e.error) AS error, count(*) AS times, min(e.payload ->> 'call_id') AS call_id,
           min(e.payload ->> 'reason') AS reason, max(e.payload ->> 'duration_s') AS duration_s
    FROM attempts AS a
    JOIN mailboxes AS m ON m.kind = 'call' AND m.key = a.id::text
    JOIN mailbox_events AS e ON e.mailbox_id = m.id AND e.type <> 'reported'
    WHERE a.lead_id = $1
    GROUP BY a.id, a.ordinal, e.type
)
SELECT * FROM (
    SELECT t.at, 'ours' AS clock, NULL::text AS carrier_at, 'lead' AS source, t.what, NULL::uuid AS attempt_id,
           NULL::int AS ordinal, NULL::text AS actor, t.reason, '{}'::jsonb AS details
    FROM leads AS l
    CROSS JOIN LATERAL (VALUES
        (l.created_at, 'created', NULL),
        -- Where a person requested it, the audit log has it, with the actor.
        (CASE WHEN NOT EXISTS (SELECT FROM audit_log AS g
                               WHERE g.subject = $1::text AND g.action = 'lead.cancel_requested')
              THEN l.cancel_requested_at END, 'cancel_requested', l.cancel_reason),
        (l.finished_at, 'finished', concat_ws(': ', l.outcome, l.outcome_reason))) AS t (at, what, reason)
    WHERE l.id = $1
    UNION ALL
    SELECT t.at, 'ours', NULL, 'lead', t.what, NULL, NULL, t.actor, t.reason, t.details
    FROM lead_reopenings AS r
    CROSS JOIN LATERAL (VALUES
        (r.finished_at, 'finished', NULL, concat_ws(': ', r.outcome, r.outcome_reason), '{}'::jsonb),
        (r.at, 'reopened', r.actor, r.reason, jsonb_build_object('order', r.no))) AS t (at, what, actor, reason, details)
    WHERE r.lead_id = $1
    UNION ALL
    -- Our actions, and our own conclusions.
    SELECT t.at, 'ours', NULL, 'attempt', t.what, a.id, a.ordinal, NULL, t.reason, '{}'
    FROM attempts AS a
    CROSS JOIN LATERAL (VALUES
        (a.intent_at, 'intended', NULL),
        (a.accepted_at, 'accepted', NULL),
        (CASE WHEN a.state IN ('rejected', 'absent', 'unknown') THEN a.ended_at END, a.state, a.end_reason))
        AS t (at, what, reason)
    WHERE a.lead_id = $1
    UNION ALL
    SELECT t.at, 'ours', t.carrier_at, 'carrier', t.type, t.attempt_id, t.ordinal, NULL, t.error,
           jsonb_strip_nulls(jsonb_build_object('call_id', t.call_id, 'reason', t.reason, 'duration_s', t.duration_s::int,
                                                'times', CASE WHEN t.times > 1 THEN t.times END))
    FROM reported AS t
    UNION ALL
    -- The facts of a call whose events were deleted, by the carrier's clock alone.
    SELECT t.at, 'carrier', NULL, 'carrier', t.what, a.id, a.ordinal, NULL, NULL,
           CASE WHEN t.what = 'ended' THEN jsonb_strip_nulls(jsonb_build_object('reason', a.end_reason, 'duration_s', a.duration_s))
                ELSE '{}' END
    FROM attempts AS a
    CROSS JOIN LATERAL (VALUES
        (a.ringing_at, 'ringing'), (a.answered_at, 'answered'),
        (CASE WHEN a.state = 'ended' THEN a.ended_at END, 'ended')) AS t (at, what)
    WHERE a.lead_id = $1 AND NOT EXISTS (SELECT FROM reported WHERE reported.attempt_id = a.id AND reported.type = t.what)
    UNION ALL
    SELECT r.reported_at, 'ours', NULL, 'agent', 'reported', r.attempt_id, a.ordinal, NULL, r.disposition,
           jsonb_strip_nulls(jsonb_build_object('opt_out', r.opt_out, 'callback_at', r.callback_at))
    FROM attempts AS a
    JOIN call_reports AS r ON r.attempt_id = a.id
    WHERE a.lead_id = $1
    UNION ALL
    -- An order to call it again is above, from the order itself.
    SELECT g.at, 'ours', NULL, 'audit', g.action, NULL, NULL, g.actor, g.reason, g.details
    FROM audit_log AS g
    WHERE g.subject = $1::text AND g.action <> 'lead.reopened'
    UNION ALL
    SELECT d.first_at, 'ours', NULL, 'decision', d.reason, NULL, NULL, NULL, NULL,
           jsonb_strip_nulls(jsonb_build_object('times', d.times, 'last_at', d.last_at, 'until', d.until,
                                                'subject', nullif(d.subject, '')))
    FROM decisions AS d
    WHERE d.lead_id = $1
    UNION ALL
    -- The jobs that followed, found by their unique keys: of its end, of each webhook about it, of the enrichments of its
    -- calls.
    SELECT j.created_at, 'ours', NULL, CASE j.job_type WHEN 'deliver_webhook' THEN 'webhook' ELSE 'job' END, j.job_type, NULL, NULL, NULL,
           concat_ws(': ', j.state, j.last_error_message),
           jsonb_strip_nulls(jsonb_build_object('job_id', j.id, 'runs', j.attempt_count, 'finished_at', j.finished_at))
    FROM (
        SELECT 'report_lead' AS job_type, concat($1::text, message.report) AS unique_key
        FROM message
        UNION ALL
        SELECT 'deliver_webhook', concat('msg_', replace($1::text, '-', ''), message.delivery, '/', e.id)
        FROM leads AS l JOIN webhook_endpoints AS e ON e.reseller_id = l.reseller_id
        CROSS JOIN message
        WHERE l.id = $1
        UNION ALL
        SELECT 'enrich_call', e.item_id
        FROM attempts AS a JOIN call_enrichments AS e ON e.attempt_id = a.id
        WHERE a.lead_id = $1
    ) AS wanted
    CROSS JOIN LATERAL (
        SELECT id, job_type, created_at, 'waits' AS state, last_error_message, attempt_count, NULL::timestamptz AS finished_at
        FROM job_outbox AS o
        -- By the unique index: a twin that was enqueued beside it has the same content.
        WHERE o.job_type = wanted.job_type AND o.unique_key = wanted.unique_key AND o.status = 'PENDING' AND NOT o.beside
        UNION ALL
        SELECT id, job_type, created_at, 'runs', last_error_message, attempt_count, NULL
        FROM job_outbox AS o
        WHERE o.status = 'IN_PROGRESS' AND o.job_type = wanted.job_type AND o.unique_key = wanted.unique_key
        UNION ALL
        SELECT id, job_type, created_at, outcome, last_error_message, attempt_count, finished_at
        FROM job_history AS h WHERE h.unique_key = wanted.unique_key AND h.job_type = wanted.job_type
        UNION ALL
        SELECT id, job_type, created_at, 'dead', last_error_message, attempt_count, died_at
        FROM job_dead AS d WHERE d.unique_key = wanted.unique_key AND d.job_type = wanted.job_type
    ) AS j
) AS happened
WHERE at IS NOT NULL
ORDER BY at
LIMIT $2
