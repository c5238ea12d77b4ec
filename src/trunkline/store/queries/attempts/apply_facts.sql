-- What the carrier's events add up to, many attempts at once. Facts are only ever added: a time once known stays.
UPDATE attempts AS a
SET state = f.state,
    holds_channel = a.holds_channel AND f.state <> 'ended',
    carrier_call_id = COALESCE(a.carrier_call_id, f.call_id),
    ringing_at = COALESCE(a.ringing_at, f.ringing_at),
    answered_at = COALESCE(a.answered_at, f.answered_at),
    ended_at = COALESCE(a.ended_at, f.ended_at),
    end_reason = COALESCE(f.end_reason, a.end_reason),
    duration_s = COALESCE(a.duration_s, f.duration_s),
    is_machine = f.is_machine,
    agent_joined = f.agent_joined,
    stream_began = f.stream_began,
    agent = f.agent
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::timestamptz[], $5::timestamptz[], $6::timestamptz[], $7::text[],
            $8::int[], $9::boolean[], $10::boolean[], $11::boolean[], $12::text[])
     AS f (id, state, call_id, ringing_at, answered_at, ended_at, end_reason, duration_s, is_machine, agent_joined,
           stream_began, agent)
WHERE a.id = f.id
