-- All that happened to a lead, in order: to itself, to its attempts, what the carrier and the agent told of them, who changed it.
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
) AS happened
WHERE at IS NOT NULL
ORDER BY at, source
LIMIT $2
