-- Calls: attempts and what is known of them, and what limits them. The partial unique indexes below are the promise: Valkey is a
-- hint, these are the guard. They hold over what is live, and stay on this table when what is over moves elsewhere.

CREATE TABLE attempts (
    id               uuid PRIMARY KEY,
    direction        text NOT NULL DEFAULT 'outbound' CHECK (direction IN ('outbound', 'inbound')),
    lead_id          uuid REFERENCES leads (id),
    attempt_no       smallint NOT NULL,
    -- The order of a lead's attempts. Clocks go back (a failover to a host whose clock is right), and `attempt_no` repeats when an
    -- attempt is not counted against its lead: neither says which attempt is the newest. 0: written as not sent without ever
    -- having been dialled. Of two such ones the time decides.
    ordinal          int NOT NULL DEFAULT 0,
    reseller_id      text NOT NULL,
    merchant_id      text NOT NULL,
    campaign_id      uuid,
    number_id        uuid NOT NULL,
    -- A call that came in and was refused never had one.
    channel_no       int CHECK (channel_no >= 1),
    carrier          text NOT NULL,
    account          text NOT NULL,
    to_phone         text NOT NULL,
    from_phone       text NOT NULL,
    state            text NOT NULL DEFAULT 'dialing' CHECK (state IN (
                         'dialing', 'in_doubt', 'accepted', 'ringing', 'answered',
                         'ended', 'rejected', 'absent', 'unknown')),
    -- Apart from `state`: an attempt of unknown fate keeps its channel until no call can still be live on it.
    holds_channel    boolean NOT NULL DEFAULT true,
    carrier_call_id  text,
    dialer           text NOT NULL,
    lead_due_at      timestamptz,
    -- When everything that the call needs was there: its lead due, its window open, nothing stopped, a channel and an agent free,
    -- its turn in every pace. How late it is counts from then; before, it waited. NULL: inbound.
    ready_at         timestamptz,
    intent_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    send_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    accepted_at      timestamptz,
    ringing_at       timestamptz,
    answered_at      timestamptz,
    ended_at         timestamptz,
    end_reason       text,
    duration_s       int,
    pod              text,
    -- A machine answered, or a person did; NULL: nobody said.
    is_machine       boolean,
    -- False: no agent was given to the call, or its pod refused it. True: its document sent it to agents elsewhere.
    agent_joined     boolean,
    -- The carrier's word on the stream to the agent: it began, or could not be opened; NULL: it said nothing.
    stream_began     boolean,
    -- Who took the call, concluded at its end. NULL: nobody answered, or it goes on.
    agent            text CHECK (agent IN ('joined', 'external', 'none', 'unknown')),
    -- Of an attempt without an agent reserved for it, by choice: the agents it counts on, how probably it is answered, and the
    -- share of abandoned calls that it was admitted under.
    overdial_group   text,
    answer_rate      real,
    abandon_max      real,
    -- What the intent set aside of the merchant's money, in millionths of the currency.
    reserved_micros  bigint NOT NULL DEFAULT 0,
    -- What the call cost by the price in a policy, once it has ended; until then `reserved_micros` stands in its place.
    cost_micros      bigint,
    -- By the carrier's own figures, in millionths of its currency. NULL: it has told none.
    carrier_cost_micros    bigint,
    carrier_cost_currency  text,
    -- When somebody looks at it next. Every attempt that is live or holds a channel has such a moment: none is stuck.
    next_check_at    timestamptz DEFAULT clock_timestamp() + interval '15 seconds',
    doubt_checks     smallint NOT NULL DEFAULT 0,
    -- When its carrier was last asked about it. NULL: not yet.
    looked_at        timestamptz,
    -- When the carrier is asked, or asked again, to end the call. NULL: nobody wants it ended.
    hang_up_at       timestamptz,
    CONSTRAINT attempts_never_forgotten CHECK (next_check_at IS NOT NULL OR NOT holds_channel),
    CONSTRAINT attempts_held_channel_is_numbered CHECK (channel_no IS NOT NULL OR NOT holds_channel),
    CHECK (direction = 'inbound' OR lead_id IS NOT NULL)
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX attempts_one_live_per_lead ON attempts (lead_id)
    WHERE state IN ('dialing', 'in_doubt', 'accepted', 'ringing', 'answered');
CREATE UNIQUE INDEX attempts_one_per_channel ON attempts (number_id, channel_no) WHERE holds_channel;
CREATE UNIQUE INDEX attempts_one_live_per_pair ON attempts (to_phone, from_phone)
    WHERE direction = 'outbound' AND state IN ('dialing', 'in_doubt', 'accepted', 'ringing', 'answered');
CREATE UNIQUE INDEX attempts_one_per_carrier_call ON attempts (carrier, carrier_call_id)
    WHERE carrier_call_id IS NOT NULL;
CREATE INDEX attempts_by_lead ON attempts (lead_id, attempt_no);
CREATE INDEX attempts_to_check ON attempts (next_check_at) WHERE holds_channel;
CREATE INDEX attempts_to_hang_up ON attempts (hang_up_at) WHERE hang_up_at IS NOT NULL;
-- What limits count: calls to a person, calls at once, requests that came to nothing, and doubts of an account.
CREATE INDEX attempts_by_person ON attempts (to_phone, send_at) WHERE direction = 'outbound';
CREATE INDEX attempts_live_by_merchant ON attempts (merchant_id, campaign_id)
    WHERE holds_channel AND direction = 'outbound';
CREATE INDEX attempts_unplaced ON attempts (merchant_id, intent_at) WHERE state IN ('rejected', 'absent');
CREATE INDEX attempts_in_doubt ON attempts (carrier, account) WHERE state = 'in_doubt';
-- How many of a merchant's answered calls of the last minutes had no agent. Counted only when one of them had none.
CREATE INDEX attempts_answered_by_merchant ON attempts (merchant_id, ended_at) INCLUDE (agent)
    WHERE direction = 'outbound' AND state = 'ended' AND answered_at IS NOT NULL;
CREATE INDEX attempts_overdialled ON attempts (overdial_group)
    WHERE overdial_group IS NOT NULL AND state IN ('dialing', 'in_doubt', 'accepted', 'ringing');

-- Whoever inserts an attempt that may be dialled holds its lead's lock, so the numbers of a lead grow without a gap. A row that
-- only records that a COMMIT was lost has none: a later attempt of the lead must stay the newest.
CREATE FUNCTION attempts_number() RETURNS trigger LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    NEW.ordinal := 1 + coalesce((SELECT max(a.ordinal) FROM attempts AS a WHERE a.lead_id = NEW.lead_id), 0);
    RETURN NEW;
END $$;
CREATE TRIGGER attempts_number BEFORE INSERT ON attempts FOR EACH ROW
WHEN (NEW.lead_id IS NOT NULL AND NEW.state <> 'rejected') EXECUTE FUNCTION attempts_number();

-- What a call does finds its rows by their keys, however the tables have grown since its plan was made. A plan is made once for a
-- connection, often while the tables are young, and kept: one that reads all of a small table reads all of a large one too, until
-- the table is analyzed. Measured at 200 dials a second on a new database: 400 rows of attempts were read for each dial, and more
-- with every one. So the planner is left one way in the functions below: row by row, through an index.

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
) RETURNS TABLE (id uuid, state text) LANGUAGE sql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
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
$$;

-- What agents report of their calls: once per call, also after its end. The call's fold joins it with what the carrier
-- tells, whichever comes first.
CREATE TABLE call_reports (
    attempt_id      uuid PRIMARY KEY REFERENCES attempts (id) ON DELETE CASCADE,
    reseller_id     text NOT NULL,
    merchant_id     text NOT NULL,
    -- Which of the call's agents reported. The report of a later one takes the place of an earlier one's.
    turn            smallint NOT NULL DEFAULT 0,
    disposition     text CHECK (length(disposition) BETWEEN 1 AND 100),
    opt_out         boolean NOT NULL DEFAULT false,
    callback_at     timestamptz,
    transcript_ref  text CHECK (length(transcript_ref) BETWEEN 1 AND 2000),
    recording_ref   text CHECK (length(recording_ref) BETWEEN 1 AND 2000),
    data            jsonb NOT NULL DEFAULT '{}',
    reported_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What an agent stores of its call while it has it: another agent goes on from there if the first is lost. It goes with the
-- call's attempt.
CREATE TABLE call_states (
    attempt_id   uuid PRIMARY KEY REFERENCES attempts (id) ON DELETE CASCADE,
    reseller_id  text NOT NULL,
    merchant_id  text NOT NULL,
    -- Of the agent that stored it: how often the call had been given another one before.
    turn         smallint NOT NULL,
    state        jsonb NOT NULL,
    saved_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Where carriers keep the recordings of calls: told once in a webhook, and kept for longer than its event.
CREATE TABLE call_recordings (
    attempt_id   uuid NOT NULL REFERENCES attempts (id) ON DELETE CASCADE,
    reseller_id  text NOT NULL,
    merchant_id  text NOT NULL,
    ref          text NOT NULL CHECK (length(ref) BETWEEN 1 AND 2000),
    kept_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (attempt_id, ref)
);

-- What was learnt of a call after its end. The row is the guard against enriching twice.
CREATE TABLE call_enrichments (
    item_id        text PRIMARY KEY CHECK (length(item_id) BETWEEN 1 AND 200),
    -- Whose call it is about, so that what was found can be read with the call. Items may also be about no call of ours.
    attempt_id     uuid REFERENCES attempts (id) ON DELETE CASCADE,
    reseller_id    text,
    merchant_id    text,
    status         text NOT NULL DEFAULT 'ENRICHING' CHECK (status IN ('ENRICHING', 'READY', 'DISCARDED')),
    source         text NOT NULL DEFAULT '{}',
    recording_ref  text,
    transcript     text,
    data           text,
    created_at     timestamptz NOT NULL DEFAULT now(),
    updated_at     timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX call_enrichments_by_attempt ON call_enrichments (attempt_id) WHERE attempt_id IS NOT NULL;
-- For retention, oldest first.
CREATE INDEX call_enrichments_by_age ON call_enrichments (updated_at);

-- Overdialling: how many calls are answered, how many of those who answered found no agent, and who they were.
-- What ended, one row for each merchant and campaign of a settlement, in its transaction: nobody waits for a counter that
-- another holds. A loop folds these rows, so that reading them stays cheap.
CREATE TABLE call_counts (
    reseller_id  text NOT NULL,
    -- Empty: all merchants of the reseller together. Whoever folds writes these, so that an overview reads few rows.
    merchant_id  text NOT NULL,
    -- The zero id: leads without a campaign.
    campaign_id  uuid NOT NULL,
    -- When, or the minute, hour or day (UTC) of it.
    at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    grain        text NOT NULL DEFAULT 'call' CHECK (grain IN ('call', 'minute', 'hour', 'day')),
    -- Calls that a carrier took and that are over; those that somebody or something answered; those that a person answered;
    -- and those of them that found no agent in time. A correction is negative.
    ended        bigint NOT NULL,
    answered     bigint NOT NULL,
    by_person    bigint NOT NULL,
    abandoned    bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
CREATE INDEX call_counts_by_campaign ON call_counts (merchant_id, campaign_id, at);
CREATE INDEX call_counts_to_fold ON call_counts (at) WHERE grain <> 'day';
CREATE INDEX call_counts_fresh ON call_counts (at) WHERE grain = 'call';

-- Who answered and found no agent. Regulators ask for such records, and whoever is in here is rung again only with an agent
-- reserved.
CREATE TABLE abandoned_calls (
    attempt_id   uuid PRIMARY KEY,
    lead_id      uuid NOT NULL,
    reseller_id  text NOT NULL,
    merchant_id  text NOT NULL,
    campaign_id  uuid,
    phone        text NOT NULL,
    at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- No agent was reserved for the call, by choice.
    overdialled  boolean NOT NULL
);
CREATE INDEX abandoned_calls_by_person ON abandoned_calls (merchant_id, phone, at);

-- When an account, a number or a campaign may start its next call. Read and written under the lock of its name, which is
-- an advisory one: a row that does not exist yet cannot be locked.
CREATE TABLE paces (
    kind           text NOT NULL CHECK (kind IN ('account', 'number', 'campaign')),
    subject        text NOT NULL,
    next_start_at  timestamptz NOT NULL,
    PRIMARY KEY (kind, subject)
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

-- What a merchant has used in a day of its own time zone: counted by every intent, so that a limit set at noon knows the
-- morning.
CREATE TABLE merchant_days (
    merchant_id   text NOT NULL REFERENCES merchants (id) ON DELETE CASCADE,
    day           date NOT NULL,
    attempts      bigint NOT NULL DEFAULT 0,
    spent_micros  bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (merchant_id, day)
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

-- What fails at the account costs the account: a carrier that refuses calls for our sake is left alone for a while, and then
-- asked with one call at a time.
-- A cooldown is as narrow as the refusal: the account, its calls to one country, one of our numbers, or the account as one
-- process reaches it. A circuit breaker with one probe: while it is open, one attempt at a time goes out, named here.
-- Intents alone name probes, under the account's lock, and read from the attempt what became of the last one. Whoever
-- writes results begins and ends cooldowns in a transaction that touches nothing else: it holds no attempt meanwhile.
CREATE TABLE cooldowns (
    scope          text NOT NULL CHECK (scope IN ('account', 'country', 'number', 'process')),
    -- carrier/account, carrier/account/country, the number's id, process:carrier/account
    subject        text NOT NULL,
    carrier        text NOT NULL,
    account        text NOT NULL,
    -- The carrier's code and the cause in words; `unproven`: nothing was refused, and nobody knows whether it would be.
    code           text NOT NULL,
    why            text NOT NULL DEFAULT '',
    began_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    refused_at     timestamptz,
    -- Not before then the next probe, and not before the last one is decided.
    opens_at       timestamptz NOT NULL,
    probes         int NOT NULL DEFAULT 0,
    probe          uuid,
    -- The carrier takes such calls and fails them later: a probe is taken when it rings.
    needs_ringing  boolean NOT NULL DEFAULT false,
    PRIMARY KEY (scope, subject)
);
CREATE INDEX cooldowns_by_account ON cooldowns (carrier, account);

-- When an account last took a call, to the second; and which leads were refused since, one after the other, with a code that
-- nobody knows.
CREATE TABLE carrier_health (
    carrier           text NOT NULL,
    account           text NOT NULL,
    taken_at          timestamptz,
    unexplained_code  text NOT NULL DEFAULT '',
    unexplained       uuid[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (carrier, account)
);

-- What every intent counts: calls to persons, the paces, doubts of accounts, calls above a number's maximum, cooldowns with
-- their probes, and when accounts last took a call. Live
-- attempts count; what was certainly not placed (rejected, absent) does not. Every row answers one question, by its place
-- in the list of its kind. A single query that is not volatile: it is planned as a part of the query that calls it.
CREATE FUNCTION count_limits(
    in_now timestamptz,
    in_phones text[], in_merchants text[], in_most int[], in_windows_s int[], in_asking text[],
    in_pace_kinds text[], in_pace_subjects text[], in_carriers text[], in_accounts text[], in_numbers uuid[]
) RETURNS TABLE (kind text, which bigint, n bigint, m bigint, at timestamptz, flag boolean, words text[], since timestamptz)
LANGUAGE sql STABLE AS $$
SELECT 'now', 0::bigint, NULL::bigint, NULL::bigint, in_now, NULL::boolean,
       NULL::text[], NULL::timestamptz
UNION ALL
SELECT 'person', q.which, count(c.send_at), NULL, min(c.send_at), coalesce(bool_and(c.own), true), NULL, NULL
FROM unnest(in_phones, in_merchants, in_most, in_windows_s, in_asking)
     WITH ORDINALITY AS q (phone, merchant_id, max_calls, window_s, asks, which)
LEFT JOIN LATERAL (
    SELECT a.send_at, a.merchant_id = q.asks AS own
    FROM attempts AS a
    WHERE a.to_phone = q.phone AND a.direction = 'outbound'
      AND a.send_at > in_now - make_interval(secs => q.window_s)
      AND a.state NOT IN ('rejected', 'absent') AND q.merchant_id IN ('', a.merchant_id)
    ORDER BY a.send_at DESC LIMIT q.max_calls) AS c ON true
GROUP BY q.which
UNION ALL
SELECT 'pace', q.which, NULL, NULL, p.next_start_at, NULL, NULL, NULL
FROM unnest(in_pace_kinds, in_pace_subjects) WITH ORDINALITY AS q (kind, subject, which)
CROSS JOIN LATERAL (SELECT next_start_at FROM paces WHERE kind = q.kind AND subject = q.subject LIMIT 1) AS p
UNION ALL
SELECT 'doubt', q.which, doubts.n,
       -- A few doubts are nothing; only beyond them is it worth adding up the account's channels.
       CASE WHEN doubts.n > 3 THEN (SELECT sum(n.max_channels) FROM numbers AS n
                                    WHERE n.carrier = q.carrier AND n.account = q.account) END,
       -- When the account last took a call. Here, because one more part of the query costs more than all it reads.
       (SELECT h.taken_at FROM carrier_health AS h WHERE h.carrier = q.carrier AND h.account = q.account),
       NULL, NULL, NULL
FROM unnest(in_carriers, in_accounts) WITH ORDINALITY AS q (carrier, account, which)
CROSS JOIN LATERAL (SELECT count(*) AS n FROM attempts AS a
                    WHERE a.carrier = q.carrier AND a.account = q.account AND a.state = 'in_doubt') AS doubts
UNION ALL
SELECT 'number', q.which, (SELECT count(*) FROM attempts AS a WHERE a.number_id = q.id AND a.holds_channel),
       NULL, NULL, true, NULL, NULL
FROM unnest(in_numbers) WITH ORDINALITY AS q (id, which)
JOIN numbers AS n ON n.id = q.id
CROSS JOIN LATERAL (
    SELECT a.channel_no FROM attempts AS a
    WHERE a.number_id = q.id AND a.holds_channel ORDER BY a.channel_no DESC LIMIT 1) AS highest
WHERE highest.channel_no > n.max_channels
UNION ALL
SELECT 'cooldown', q.which, c.probes, NULL, c.opens_at, c.needs_ringing,
       ARRAY[c.scope, c.subject, c.code, c.probe::text, a.state, a.end_reason, a.to_phone], a.send_at
FROM unnest(in_carriers, in_accounts) WITH ORDINALITY AS q (carrier, account, which)
CROSS JOIN LATERAL (SELECT * FROM cooldowns AS d
                    WHERE d.carrier = q.carrier AND d.account = q.account
                      AND (d.scope <> 'number' OR d.subject = ANY(in_numbers::text[]))
                    OFFSET 0) AS c
LEFT JOIN LATERAL (SELECT state, end_reason, to_phone, send_at FROM attempts WHERE id = c.probe LIMIT 1) AS a ON true
$$;

-- An intent's limits in one round trip: locked, then counted. At READ COMMITTED each statement of a VOLATILE function has a
-- snapshot of its own, so the count has everything that was committed by those we waited for. Counted in the statement of
-- the locks it would not: a statement's snapshot is older than its locks.
-- The locks come in one order for everybody, so that nobody waits for somebody who waits for him. First names, by advisory
-- locks of the transaction, as the caller has sorted them: persons, merchants, pods and accounts. Then the numbers, by id,
-- against a change of `max_channels` until the commit: shared, unless a call sits above the maximum of one of them; then
-- the calls have to be counted, and one intent at a time may do that.
-- A row of kind 'locked' is a number; its flag says whether its calls may be counted under this lock.
CREATE FUNCTION lock_and_count_limits(
    in_keys bigint[], in_numbers uuid[],
    in_phones text[], in_merchants text[], in_most int[], in_windows_s int[], in_asking text[],
    in_pace_kinds text[], in_pace_subjects text[], in_carriers text[], in_accounts text[]
) RETURNS TABLE (
    kind text, which bigint, n bigint, m bigint, at timestamptz, flag boolean,
    id uuid, e164 text, carrier text, account text, max_channels int, starts_per_s float8, status text, pool_id text,
    words text[], since timestamptz
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    is_crowded boolean;
    locked_at timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock(k.key)
    FROM (SELECT key FROM unnest(in_keys) WITH ORDINALITY AS k (key, nth) ORDER BY nth) AS k;

    -- The highest channel in use is the first of its index; any other way of asking can be planned as a walk over all calls.
    is_crowded := EXISTS (
        SELECT FROM numbers AS n CROSS JOIN LATERAL (
            SELECT a.channel_no FROM attempts AS a
            WHERE a.number_id = n.id AND a.holds_channel ORDER BY a.channel_no DESC LIMIT 1) AS highest
        WHERE n.id = ANY(in_numbers) AND highest.channel_no > n.max_channels);
    IF is_crowded THEN
        RETURN QUERY
        SELECT 'locked', 0::bigint, NULL::bigint, NULL::bigint, NULL::timestamptz, true,
               n.id, n.e164, n.carrier, n.account, n.max_channels, n.starts_per_s, n.status, n.pool_id,
               NULL::text[], NULL::timestamptz
        FROM numbers AS n WHERE n.id = ANY(in_numbers) ORDER BY n.id FOR NO KEY UPDATE;
    ELSE
        RETURN QUERY
        SELECT 'locked', 0::bigint, NULL::bigint, NULL::bigint, NULL::timestamptz, false,
               n.id, n.e164, n.carrier, n.account, n.max_channels, n.starts_per_s, n.status, n.pool_id,
               NULL::text[], NULL::timestamptz
        FROM numbers AS n WHERE n.id = ANY(in_numbers) ORDER BY n.id FOR SHARE;
    END IF;

    locked_at := clock_timestamp();
    RETURN QUERY
    SELECT c.kind, c.which, c.n, c.m, c.at, c.flag,
           NULL::uuid, NULL, NULL, NULL, NULL::int, NULL::float8, NULL, NULL, c.words, c.since
    FROM count_limits(locked_at, in_phones, in_merchants, in_most, in_windows_s, in_asking,
                      in_pace_kinds, in_pace_subjects, in_carriers, in_accounts, in_numbers) AS c;
END $$;

-- When the carriers were last asked about calls that go on. Webhooks get lost: in an outage of ours, on the way, at the
-- carrier. A call whose end nobody told keeps its channel until somebody asks.
-- One row per account that has had calls.
CREATE TABLE account_looks (
    carrier       text NOT NULL,
    account       text NOT NULL,
    -- When its calls are compared with the carrier's list next. Whoever sees that webhooks were lost brings it forward.
    next_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Somebody is at it. If that process dies, another begins then.
    leased_until  timestamptz,
    looked_at     timestamptz,
    PRIMARY KEY (carrier, account)
) WITH (fillfactor = 50);

-- When a process that takes webhooks last reached Postgres. After a gap nobody knows what was told meanwhile. One row.
CREATE TABLE webhook_hearing (
    is_only  boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    ran_at   timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);
INSERT INTO webhook_hearing DEFAULT VALUES;

-- Carriers whose webhooks tell no price are asked for it later, by pages of the calls that have ended. A price may take a while to
-- be there, so each stretch of time is read twice: after each of the lags.
CREATE TABLE cost_readings (
    carrier       text NOT NULL,
    account       text NOT NULL,
    lag_s         int NOT NULL,
    -- Calls that ended before this have been read.
    read_to       timestamptz NOT NULL,
    leased_until  timestamptz,
    PRIMARY KEY (carrier, account, lag_s)
) WITH (fillfactor = 50);
