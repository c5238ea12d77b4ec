-- Attempts with what their leads still allow. Read under the locks, in a later statement than the one that took them.
SELECT a.id, a.lead_id, a.attempt_no, a.carrier, a.account, a.holds_channel, a.state, a.carrier_call_id, a.ringing_at,
       a.answered_at, a.ended_at, a.end_reason, a.duration_s, a.is_machine, a.agent_joined, a.stream_began,
       a.agent,
       a.reseller_id, a.merchant_id, a.campaign_id, a.to_phone, a.reserved_micros, l.timezone,
       -- The moment whose day it was counted under: a call is made ready a little before its time.
       greatest(a.intent_at, a.lead_due_at) AS counted_at,
       -- By Postgres' own clock; the numbers of attempts repeat when one is not counted against its lead.
       NOT EXISTS (SELECT FROM attempts AS n WHERE n.lead_id = a.lead_id AND n.intent_at > a.intent_at) AS is_newest,
       l.status AS lead_status, l.attempt_count, l.max_attempts, l.carrier_error_count, l.no_agent_count,
       l.outcome AS lead_outcome,
       l.cancel_requested_at IS NOT NULL AS is_cancelled, l.cancel_reason, a.hang_up_at IS NOT NULL AS hang_up_wanted,
       -- What the agent reported; `read_at` is the clock by which a wanted callback is so many seconds away.
       r.attempt_id IS NOT NULL AS is_reported, r.disposition, r.opt_out, r.callback_at,
       clock_timestamp() AS read_at,
       -- What the agent that was given to the call shows of itself. A heartbeat of another process of the same name says
       -- nothing of it.
       s.id IS NOT NULL AS is_allocated, s.begun_at, s.joined_at IS NOT NULL OR coalesce(s.call = ANY(p.named), false) AS has_joined,
       CASE WHEN s.joined_at IS NULL AND s.call <> ALL(p.named) THEN p.heard_at END AS unnamed_at,
       -- The carrier asked what follows the stream, and no agent had taken it.
       coalesce(s.joined_at IS NULL AND cardinality(s.lost_pods) > 0, false) AS was_refused,
       coalesce(a.lead_id IS NOT NULL AND a.intent_at > b.stops_until, false) AS is_probe
FROM attempts AS a
LEFT JOIN leads AS l ON l.id = a.lead_id
LEFT JOIN call_reports AS r ON r.attempt_id = a.id
LEFT JOIN allocations AS s ON s.id = a.id
LEFT JOIN pods AS p ON p.name = s.pod AND p.incarnation = s.incarnation
LEFT JOIN no_agent_brakes AS b ON b.merchant_id = a.merchant_id
WHERE a.id = ANY($1::uuid[])
