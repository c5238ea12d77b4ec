-- As migration 0034, for attempts: row by row, through an index, however the tables have grown since the plan was made.

-- Lock the leads of these attempts, then the attempts, each in id order: a compare-and-set by UPDATE … FROM alone
-- deadlocks with its like. What the transaction does with them afterwards is planned in the same way.
CREATE FUNCTION attempts_lock(in_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
            set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true);
    PERFORM l.id FROM leads AS l
    WHERE l.id IN (SELECT a.lead_id FROM attempts AS a WHERE a.id = ANY(in_ids))
    ORDER BY l.id FOR NO KEY UPDATE;
    PERFORM a.id FROM attempts AS a WHERE a.id = ANY(in_ids) ORDER BY a.id FOR NO KEY UPDATE;
END $$;

-- What the carrier answered to our own requests, many at once. Guarded by the state each answer may follow: a webhook
-- that overtook the reply has moved the attempt on, and then only a missing call id is filled in. Locked in id order
-- first, in the same statement: answers that settle nothing need no other.
CREATE FUNCTION attempts_answer(
    in_ids uuid[], in_states text[], in_sources text[], in_call_ids text[], in_reasons text[]
) RETURNS TABLE (id uuid, state text) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH locked AS MATERIALIZED (
        SELECT id FROM attempts WHERE id = ANY(in_ids) ORDER BY id FOR NO KEY UPDATE
    )
    UPDATE attempts AS a
    SET state = CASE WHEN a.state = ANY(string_to_array(r.sources, ',')) THEN r.state ELSE a.state END,
        carrier_call_id = COALESCE(a.carrier_call_id, r.call_id),
        accepted_at = CASE WHEN r.state = 'accepted' THEN COALESCE(a.accepted_at, clock_timestamp()) ELSE a.accepted_at END,
        ended_at = CASE WHEN r.state = 'rejected' AND a.state = ANY(string_to_array(r.sources, ','))
                        THEN clock_timestamp() ELSE a.ended_at END,
        end_reason = CASE WHEN r.state IN ('rejected', 'in_doubt') AND a.state = ANY(string_to_array(r.sources, ','))
                          THEN r.reason ELSE a.end_reason END,
        next_check_at = CASE WHEN r.state = 'in_doubt' THEN clock_timestamp() + interval '5 seconds'
                             ELSE a.next_check_at END,
        holds_channel = a.holds_channel
                        AND NOT (r.state = 'rejected' AND a.state = ANY(string_to_array(r.sources, ',')))
    FROM unnest(in_ids, in_states, in_sources, in_call_ids, in_reasons) AS r (id, state, sources, call_id, reason)
    JOIN locked ON locked.id = r.id
    WHERE a.id = r.id
    RETURNING a.id, a.state;
END $$;
