-- Outcomes say who was missing: NO_AGENT is answered and nobody of ours, BUSY is an engaged line.

ALTER TABLE leads
    -- How often it was answered and no agent was there. That costs no attempt, and its next call has its agent reserved.
    ADD COLUMN no_agent_count smallint NOT NULL DEFAULT 0;

ALTER TABLE attempts
    -- The carrier's word on the stream to the agent: it began, or could not be opened; NULL: it said nothing.
    ADD COLUMN stream_began boolean,
    -- Who took the call, concluded at its end. NULL: nobody answered, or it goes on.
    ADD COLUMN agent text CHECK (agent IN ('joined', 'external', 'none', 'unknown'));
COMMENT ON COLUMN attempts.agent_joined IS
    'False: no agent was given to the call, or its pod refused it. True: its document sent it to agents elsewhere.';

-- A call that ended `completed` after somebody talked was answered, whatever webhook was lost.
UPDATE attempts SET answered_at = ended_at - make_interval(secs => duration_s)
WHERE state = 'ended' AND end_reason = 'completed' AND answered_at IS NULL AND duration_s > 0;

-- The words that both had before. In this order: what is BUSY now was NO_ANSWER, and what was BUSY is NO_AGENT.
UPDATE attempts AS a SET agent = 'none'
FROM leads AS l
WHERE l.id = a.lead_id AND l.outcome = 'BUSY' AND l.outcome_reason = 'NO_AGENT' AND a.agent_joined IS FALSE;
UPDATE leads SET outcome = 'NO_AGENT', outcome_reason = NULL WHERE outcome = 'BUSY' AND outcome_reason = 'NO_AGENT';
UPDATE leads SET outcome = 'BUSY', outcome_reason = NULL WHERE outcome = 'NO_ANSWER' AND outcome_reason = 'BUSY';

-- How many of a merchant's answered calls of the last minutes had no agent. Counted only when one of them had none.
CREATE INDEX attempts_answered_by_merchant ON attempts (merchant_id, ended_at) INCLUDE (agent)
    WHERE direction = 'outbound' AND state = 'ended' AND answered_at IS NOT NULL;

-- The circuit breaker of a merchant whose people answer and find no agent. A row for every merchant that this happened to;
-- `stops_until` is set while it is tripped: until then nobody is dialled, afterwards one at a time until one has its agent.
CREATE TABLE no_agent_brakes (
    merchant_id  text PRIMARY KEY,
    -- Calls that ended before count no more.
    counts_from  timestamptz NOT NULL DEFAULT '-infinity',
    stops_until  timestamptz
);

-- The live calls of a merchant whose breaker is tripped: those since its dials were stopped, how many of these have their agent,
-- and all others. Through an index, however small the table was when it was planned: apart from the function below, which
-- becomes a part of whatever asks.
CREATE FUNCTION no_agent_probes(in_merchant text, in_since timestamptz, OUT calls int, OUT joined int, OUT others int)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    SELECT count(*) FILTER (WHERE a.intent_at > in_since AND a.state <> 'unknown'),
           count(l.joined_at) FILTER (WHERE a.intent_at > in_since),
           count(*) FILTER (WHERE a.intent_at <= in_since OR a.state = 'unknown')
    INTO calls, joined, others
    FROM attempts AS a
    LEFT JOIN allocations AS l ON l.id = a.id
    WHERE a.merchant_id = in_merchant AND a.direction = 'outbound' AND a.holds_channel;
END $$;

-- What a tripped breaker means for a merchant's next dial. No row: nothing. `opens_at`: not before then, because dials are
-- stopped, or because one of the calls since then is under way and has no agent yet. `live_max`: how many calls the
-- merchant may have with that dial, counted under its lock.
CREATE FUNCTION no_agent_brake(in_merchant text) RETURNS TABLE (opens_at timestamptz, live_max int)
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT CASE WHEN b.stops_until > statement_timestamp() THEN b.stops_until
                WHEN probes.calls > 0 THEN statement_timestamp() + interval '1 second' END,
           1 + probes.others
    FROM no_agent_brakes AS b
    CROSS JOIN LATERAL no_agent_probes(b.merchant_id, b.stops_until) AS probes
    WHERE b.merchant_id = in_merchant AND b.stops_until IS NOT NULL AND probes.joined = 0
$$;

-- Whoever was answered and found no agent was tried, and is to be called again, though it cost no attempt.
CREATE OR REPLACE FUNCTION leads_came() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO campaign_counts (campaign_id, merchant_id, status, outcome, leads, attempts, tried, first_finished_at,
                                 last_finished_at)
    SELECT campaign_id, merchant_id, status, outcome, count(*), sum(attempt_count),
           count(*) FILTER (WHERE attempt_count + no_agent_count > 0), min(finished_at), max(finished_at)
    FROM now_there
    WHERE campaign_id IS NOT NULL
    GROUP BY campaign_id, merchant_id, status, outcome;
    RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION leads_went() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO campaign_counts (campaign_id, merchant_id, status, outcome, leads, attempts, tried)
    SELECT campaign_id, merchant_id, status, outcome, -count(*), -sum(attempt_count),
           -count(*) FILTER (WHERE attempt_count + no_agent_count > 0)
    FROM no_more
    WHERE campaign_id IS NOT NULL
    GROUP BY campaign_id, merchant_id, status, outcome;
    RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION leads_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO campaign_counts (campaign_id, merchant_id, status, outcome, leads, attempts, tried, first_finished_at,
                                 last_finished_at)
    SELECT campaign_id, merchant_id, status, outcome, sum(leads), sum(leads * attempt_count),
           coalesce(sum(leads) FILTER (WHERE attempt_count + no_agent_count > 0), 0), min(finished_at), max(finished_at)
    FROM (
        SELECT campaign_id, merchant_id, status, outcome, 1 AS leads, attempt_count, no_agent_count, finished_at
        FROM now_there
        UNION ALL
        SELECT campaign_id, merchant_id, status, outcome, -1, attempt_count, no_agent_count, NULL FROM no_more
    ) AS change
    WHERE campaign_id IS NOT NULL
    GROUP BY campaign_id, merchant_id, status, outcome
    HAVING sum(leads) <> 0 OR sum(leads * attempt_count) <> 0;
    RETURN NULL;
END $$;
