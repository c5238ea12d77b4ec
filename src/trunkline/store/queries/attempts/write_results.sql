-- What the carrier answered to our own requests, many at once. Guarded by the state each answer may follow:
-- a webhook that overtook the reply has moved the attempt on, and then only a missing call id is filled in.
-- Locked in id order first, in the same statement: answers that settle nothing need no other.
WITH locked AS MATERIALIZED (
    SELECT id FROM attempts WHERE id = ANY($1::uuid[]) ORDER BY id FOR NO KEY UPDATE
)
UPDATE attempts AS a
SET state = CASE WHEN a.state = ANY(string_to_array(r.sources, ',')) THEN r.state ELSE a.state END,
    carrier_call_id = COALESCE(a.carrier_call_id, r.call_id),
    accepted_at = CASE WHEN r.state = 'accepted' THEN COALESCE(a.accepted_at, clock_timestamp()) ELSE a.accepted_at END,
    ended_at = CASE WHEN r.state = 'rejected' AND a.state = ANY(string_to_array(r.sources, ','))
                    THEN clock_timestamp() ELSE a.ended_at END,
    end_reason = CASE WHEN r.state IN ('rejected', 'in_doubt') AND a.state = ANY(string_to_array(r.sources, ','))
                      THEN r.reason ELSE a.end_reason END,
    next_check_at = CASE WHEN r.state = 'in_doubt' THEN clock_timestamp() + interval '5 seconds' ELSE a.next_check_at END,
    holds_channel = a.holds_channel AND NOT (r.state = 'rejected' AND a.state = ANY(string_to_array(r.sources, ',')))
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[]) AS r (id, state, sources, call_id, reason)
JOIN locked ON locked.id = r.id
WHERE a.id = r.id
RETURNING a.id, a.lead_id, a.state, a.holds_channel
