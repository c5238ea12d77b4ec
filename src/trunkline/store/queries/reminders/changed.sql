-- Occurrences whose lead has moved on since it was last read, with the lead and its newest attempt. Each is held by one
-- process; the others pass over it. Leads are read and not locked: what they become next is read next time.
SELECT o.id, o.reminder_id, o.state, o.attempt_count, o.external_call_id, o.last_error, o.max_attempts,
       l.version AS lead_version, l.status AS lead_status, l.outcome, l.outcome_reason, l.due_at,
       l.attempt_count AS lead_attempts, l.carrier_error_count, l.no_agent_count, a.id AS attempt_id, a.carrier_call_id, a.answered_at,
       a.end_reason, a.agent
FROM reminder_occurrences AS o
JOIN leads AS l ON l.id = o.lead_id
LEFT JOIN LATERAL (
    SELECT * FROM attempts WHERE lead_id = l.id ORDER BY attempt_no DESC, id DESC LIMIT 1
) AS a ON true
WHERE o.state IN ('SCHEDULED', 'PROCESSING', 'PENDING_RETRY')
  AND (l.version <> o.lead_version OR a.carrier_call_id IS DISTINCT FROM o.external_call_id)
ORDER BY o.id
LIMIT $1
FOR NO KEY UPDATE OF o SKIP LOCKED
