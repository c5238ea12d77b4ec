-- Leads and their attempts. The partial unique indexes below are the promise: Valkey is a hint, these are the guard.

CREATE TABLE leads (
    id                     uuid PRIMARY KEY,
    reseller_id            text NOT NULL REFERENCES resellers (id),
    merchant_id            text NOT NULL REFERENCES merchants (id),
    request_id             text NOT NULL CHECK (length(request_id) BETWEEN 1 AND 200),
    request_hash           bytea NOT NULL CHECK (octet_length(request_hash) = 32),
    phone                  text NOT NULL CHECK (phone ~ '^\+[1-9][0-9]{6,14}$'),
    -- Where the callee is, if the caller knows better than the number tells.
    timezone               text,
    payload                jsonb NOT NULL DEFAULT '{}',
    campaign_id            uuid,
    pool_id                text NOT NULL REFERENCES pools (id),
    priority               smallint NOT NULL DEFAULT 50 CHECK (priority BETWEEN 1 AND 99),
    status                 text NOT NULL DEFAULT 'BACKLOG' CHECK (status IN ('BACKLOG', 'PROCESSING', 'FINISHED')),
    outcome                text,
    outcome_reason         text,
    scheduled_at           timestamptz NOT NULL,
    due_at                 timestamptz NOT NULL,
    -- The end of the calling window in which `due_at` lies, where there is one.
    closes_at              timestamptz,
    version                int NOT NULL DEFAULT 1,
    attempt_count          smallint NOT NULL DEFAULT 0,
    carrier_error_count    smallint NOT NULL DEFAULT 0,
    max_attempts           smallint NOT NULL DEFAULT 1 CHECK (max_attempts BETWEEN 1 AND 20),
    reporting_webhook_url  text,
    created_at             timestamptz NOT NULL DEFAULT now(),
    updated_at             timestamptz NOT NULL DEFAULT now(),
    finished_at            timestamptz,
    -- Somebody wanted its end while it was being called: it ends with this call, and is not called again.
    cancel_requested_at    timestamptz,
    cancel_reason          text,
    CHECK ((status = 'FINISHED') = (outcome IS NOT NULL)),
    CHECK ((status = 'FINISHED') = (finished_at IS NOT NULL)),
    CONSTRAINT leads_request_once UNIQUE (merchant_id, request_id)
) WITH (fillfactor = 80);
-- What the schedule is loaded from: flow by flow, overdue leads by priority, upcoming ones by due.
CREATE INDEX leads_backlog_by_priority ON leads
    (pool_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000'), priority, due_at, id)
    INCLUDE (reseller_id) WHERE status = 'BACKLOG';
CREATE INDEX leads_backlog_by_due ON leads
    (pool_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000'), due_at, id)
    WHERE status = 'BACKLOG';
-- Lists are newest first. Ids are UUIDv7, so the order of ids is the order of arrival. The status comes before the id: a
-- list of one status skips no lead of another, and a list of all is merged from the three.
CREATE INDEX leads_by_merchant ON leads (merchant_id, status, id);
CREATE INDEX leads_by_reseller ON leads (reseller_id, status, id);
CREATE INDEX leads_by_phone ON leads (phone, id);
CREATE INDEX leads_by_campaign ON leads (campaign_id, status, id) WHERE campaign_id IS NOT NULL;
-- The platform's own list of what is not finished; its other lists follow the primary key.
CREATE INDEX leads_unfinished ON leads (status, id) WHERE status <> 'FINISHED';

CREATE TABLE attempts (
    id               uuid PRIMARY KEY,
    direction        text NOT NULL DEFAULT 'outbound' CHECK (direction IN ('outbound', 'inbound')),
    lead_id          uuid REFERENCES leads (id),
    attempt_no       smallint NOT NULL,
    reseller_id      text NOT NULL,
    merchant_id      text NOT NULL,
    campaign_id      uuid,
    number_id        uuid NOT NULL,
    channel_no       int NOT NULL CHECK (channel_no >= 1),
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
    intent_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    send_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    accepted_at      timestamptz,
    ringing_at       timestamptz,
    answered_at      timestamptz,
    ended_at         timestamptz,
    end_reason       text,
    duration_s       int,
    pod              text,
    -- What the intent set aside of the merchant's money, in millionths of the currency.
    reserved_micros  bigint NOT NULL DEFAULT 0,
    -- When somebody looks at it next. Every attempt that is live or holds a channel has such a moment: none is stuck.
    next_check_at    timestamptz DEFAULT clock_timestamp() + interval '15 seconds',
    doubt_checks     smallint NOT NULL DEFAULT 0,
    -- When the carrier is asked, or asked again, to end the call. NULL: nobody wants it ended.
    hang_up_at       timestamptz,
    CONSTRAINT attempts_never_forgotten CHECK (next_check_at IS NOT NULL OR NOT holds_channel),
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
