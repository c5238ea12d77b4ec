-- All that happened to a lead, in order: to itself, to its attempts, what the carrier and the agent told of them, who changed it,
-- and the work that followed.
SELECT * FROM (
    SELECT t.at, 'lead' AS source, t.what, NULL::uuid AS attempt_id, NULL::text AS actor, t.reason, '{}'::jsonb AS details
    FROM leads AS l
    CROSS JOIN LATERAL (VALUES
        (l.created_at, 'created', NULL),
        (l.cancel_requested_at, 'cancel_requested', l.cancel_reason),
        (l.finished_at, 'finished', concat_ws(': ', l.outcome, l.outcome_reason))) AS t (at, what, reason)
    WHERE l.id = $1
    UNION ALL
    SELECT t.at, 'attempt', t.what, a.id, NULL, t.reason, '{}'
    FROM attempts AS a
    CROSS JOIN LATERAL (VALUES
        (a.intent_at, 'intended', NULL),
        (a.accepted_at, 'accepted', NULL),
        (a.ringing_at, 'ringing', NULL),
        (a.answered_at, 'answered', NULL),
        (a.ended_at, a.state, a.end_reason)) AS t (at, what, reason)
    WHERE a.lead_id = $1
    UNION ALL
    SELECT e.created_at, 'carrier', e.type, a.id, NULL, e.error,
           jsonb_strip_nulls(jsonb_build_object('at', e.payload -> 'at', 'call_id', e.payload -> 'call_id',
                                                'reason', e.payload -> 'reason', 'duration_s', e.payload -> 'duration_s'))
    FROM attempts AS a
    JOIN mailboxes AS m ON m.kind = 'call' AND m.key = a.id::text
    JOIN mailbox_events AS e ON e.mailbox_id = m.id AND e.type <> 'reported'
    WHERE a.lead_id = $1
    UNION ALL
    SELECT r.reported_at, 'agent', 'reported', r.attempt_id, NULL, r.disposition,
           jsonb_strip_nulls(jsonb_build_object('opt_out', r.opt_out, 'callback_at', r.callback_at))
    FROM attempts AS a
    JOIN call_reports AS r ON r.attempt_id = a.id
    WHERE a.lead_id = $1
    UNION ALL
    SELECT g.at, 'audit', g.action, NULL, g.actor, g.reason, g.details
    FROM audit_log AS g
    WHERE g.subject = $1::text
    UNION ALL
    -- The jobs that followed, found by their unique keys: of its end, of each webhook about it, of
    -- what is found out about its calls.
    SELECT j.created_at, CASE j.job_type WHEN 'deliver_webhook' THEN 'webhook' ELSE 'job' END, j.job_type, NULL, NULL,
           concat_ws(': ', j.state, j.last_error_message),
           jsonb_strip_nulls(jsonb_build_object('job_id', j.id, 'runs', j.attempt_count, 'finished_at', j.finished_at))
    FROM (
        SELECT 'report_lead' AS job_type, $1::text AS unique_key
        UNION ALL
        SELECT 'deliver_webhook', 'msg_' || replace($1::text, '-', '') || '/' || e.id
        FROM leads AS l JOIN webhook_endpoints AS e ON e.reseller_id = l.reseller_id
        WHERE l.id = $1
        UNION ALL
        SELECT 'enrich_call', e.item_id
        FROM attempts AS a JOIN call_enrichments AS e ON e.attempt_id = a.id
        WHERE a.lead_id = $1
    ) AS wanted
    CROSS JOIN LATERAL (
        SELECT id, job_type, created_at, 'waits' AS state, last_error_message, attempt_count, NULL::timestamptz AS finished_at
        FROM job_outbox AS o
        WHERE o.job_type = wanted.job_type AND o.unique_key = wanted.unique_key AND o.status = 'PENDING'
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
ORDER BY at, source
LIMIT $2
