-- Attempts with what their leads still allow. Read under the locks, in a later statement than the one that took them.
SELECT a.id, a.lead_id, a.attempt_no, a.carrier, a.holds_channel, a.state, a.carrier_call_id, a.ringing_at,
       a.answered_at, a.ended_at, a.end_reason, a.duration_s,
       l.status AS lead_status, l.attempt_count, l.max_attempts, l.carrier_error_count
FROM attempts AS a
LEFT JOIN leads AS l ON l.id = a.lead_id
WHERE a.id = ANY($1::uuid[])
