-- Whom to call: campaigns, leads, reminders, and why a lead was not called.

-- Campaigns: many leads under one policy. The policy is a layer in `policies`, what holds them back is a row in `controls`;
-- this says what a campaign is and what it is meant to do. One whose leads have all finished is COMPLETED, and runs again when
-- one waits again.
CREATE TABLE campaigns (
    id                     uuid PRIMARY KEY,
    reseller_id            text NOT NULL REFERENCES resellers (id),
    merchant_id            text NOT NULL REFERENCES merchants (id),
    request_id             text CHECK (length(request_id) BETWEEN 1 AND 200),
    request_hash           bytea NOT NULL CHECK (octet_length(request_hash) = 32),
    name                   text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    status                 text NOT NULL DEFAULT 'DRAFT'
                               CHECK (status IN ('DRAFT', 'RUNNING', 'PAUSED', 'COMPLETED', 'STOPPING', 'STOPPED')),
    pool_id                text NOT NULL REFERENCES pools (id),
    priority               smallint NOT NULL CHECK (priority BETWEEN 1 AND 99),
    max_attempts           smallint NOT NULL CHECK (max_attempts BETWEEN 1 AND 20),
    -- What leads that wait were given when they were uploaded. An edit reaches them page by page; until then they differ.
    given_pool_id          text NOT NULL,
    given_priority         smallint NOT NULL,
    given_max_attempts     smallint NOT NULL,
    starts_at              timestamptz,
    ends_at                timestamptz,
    reporting_webhook_url  text,
    stop_reason            text,
    stop_hangs_up          boolean NOT NULL DEFAULT false,
    started_at             timestamptz,
    stopped_at             timestamptz,
    completed_at           timestamptz,
    -- Since when it runs without a break: its pace is that of this time, and of no time in which it did not run.
    running_since          timestamptz,
    created_at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT campaigns_request_once UNIQUE (merchant_id, request_id),
    CHECK (ends_at > starts_at),
    CONSTRAINT campaigns_completed_at CHECK ((status = 'COMPLETED') = (completed_at IS NOT NULL))
);
CREATE INDEX campaigns_by_merchant ON campaigns (merchant_id, id);
CREATE INDEX campaigns_by_reseller ON campaigns (reseller_id, id);
-- What somebody has to do something about: end its leads, or give them what was edited. It does not grow with what is over.
CREATE INDEX campaigns_unsettled ON campaigns (id) WHERE status NOT IN ('STOPPED', 'COMPLETED');
CREATE INDEX campaigns_completed ON campaigns (completed_at) WHERE status = 'COMPLETED';

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
    -- The caller's own: it need not be the id of a row in `campaigns`.
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
    -- From then on nobody calls it: it ends as EXPIRED. NULL: it waits for as long as it takes.
    expires_at             timestamptz,
    version                int NOT NULL DEFAULT 1,
    attempt_count          smallint NOT NULL DEFAULT 0,
    carrier_error_count    smallint NOT NULL DEFAULT 0,
    -- How often it was answered and no agent was there. That costs no attempt, and its next call has its agent reserved.
    no_agent_count         smallint NOT NULL DEFAULT 0,
    -- How often a person had it called again after its end.
    reopen_count           smallint NOT NULL DEFAULT 0,
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
CREATE INDEX leads_expiring ON leads (expires_at) WHERE status = 'BACKLOG' AND expires_at IS NOT NULL;
-- Lists are newest first. Ids are UUIDv7, so the order of ids is the order of arrival. The status comes before the id: a
-- list of one status skips no lead of another, and a list of all is merged from the three.
CREATE INDEX leads_by_merchant ON leads (merchant_id, status, id);
CREATE INDEX leads_by_reseller ON leads (reseller_id, status, id);
CREATE INDEX leads_by_phone ON leads (phone, id);
CREATE INDEX leads_by_campaign ON leads (campaign_id, status, id) WHERE campaign_id IS NOT NULL;
-- The platform's own list of what is not finished; its other lists follow the primary key.
CREATE INDEX leads_unfinished ON leads (status, id) WHERE status <> 'FINISHED';
-- Leads of a merchant that ended in one way since a moment, to be called again.
CREATE INDEX leads_ended_by_merchant ON leads (merchant_id, outcome, finished_at, id) WHERE status = 'FINISHED';

-- Finished leads that a person has called again. Orders are numbered: what an earlier one left behind (attempts, ends,
-- messages to webhooks) never takes the place of what came after it.
CREATE TABLE lead_reopenings (
    lead_id         uuid NOT NULL REFERENCES leads (id) ON DELETE CASCADE,
    reseller_id     text NOT NULL,
    merchant_id     text NOT NULL,
    no              smallint NOT NULL CHECK (no >= 1),
    -- The caller's own id of the order. Sent again, it reopens nothing: the lead may have finished again by then.
    request_id      text NOT NULL CHECK (length(request_id) BETWEEN 1 AND 200),
    reason          text NOT NULL,
    actor           text NOT NULL,
    at              timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- How the lead had ended.
    outcome         text NOT NULL,
    outcome_reason  text,
    finished_at     timestamptz NOT NULL,
    PRIMARY KEY (lead_id, no),
    CONSTRAINT lead_reopenings_once UNIQUE (lead_id, request_id)
);

-- Why a lead was not called: one row for each reason, so that a lead refused a thousand times has no more rows than one
-- refused once.
CREATE TABLE decisions (
    lead_id      uuid NOT NULL REFERENCES leads (id) ON DELETE CASCADE,
    reason       text NOT NULL,
    merchant_id  text NOT NULL,
    subject      text,
    times        int NOT NULL DEFAULT 1,
    first_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When it may be called again, as far as this reason goes.
    until        timestamptz,
    PRIMARY KEY (lead_id, reason)
) WITH (fillfactor = 70);
-- Leads that wait for a window to open, for whoever changes the window.
CREATE INDEX decisions_waiting_for_window ON decisions (merchant_id, lead_id) WHERE reason = 'window';

-- What a tenant's own system said about a lead, and how often it asked for patience. A pass is good for the checks that
-- were asked. Whoever asks has claimed the row, so that one lead is asked about once at a time.
CREATE TABLE prechecks (
    lead_id        uuid PRIMARY KEY REFERENCES leads (id) ON DELETE CASCADE,
    reseller_id    text NOT NULL,
    merchant_id    text NOT NULL,
    checks_hash    bytea NOT NULL,
    claimed_until  timestamptz NOT NULL,
    passed_until   timestamptz NOT NULL DEFAULT '-infinity',
    deferrals      smallint NOT NULL DEFAULT 0,
    last_answer    text
) WITH (fillfactor = 50);

-- Whoever ends a lead (the fold of a call, a gate, an abort, ten failed intents) need not know who wants to hear of it:
-- the job that tells them is enqueued with the end itself, in the same transaction. Where nobody wants to, nothing is. The end of each
-- order is reported by a job of its own; its unique key carries the lead's id, by which what follows a lead is found.
CREATE FUNCTION lead_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.reporting_webhook_url IS NOT NULL OR EXISTS (
        SELECT FROM webhook_endpoints AS e
        WHERE e.reseller_id = NEW.reseller_id AND (e.merchant_id IS NULL OR e.merchant_id = NEW.merchant_id)
          AND e.status = 'active' AND e.event_types && '{*,lead.finished}')
    THEN
        INSERT INTO job_outbox (id, job_type, run_at, created_at, max_attempts, unique_key, reseller_id, merchant_id, payload)
        VALUES (job_id(), 'report_lead', clock_timestamp(), clock_timestamp(), 10,
                NEW.id || CASE WHEN NEW.reopen_count > 0 THEN '/' || NEW.reopen_count ELSE '' END,
                NEW.reseller_id, NEW.merchant_id,
                json_build_object('lead_id', NEW.id, 'reopen_no', NEW.reopen_count)::text)
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER leads_ended AFTER UPDATE OF status ON leads FOR EACH ROW
WHEN (NEW.status = 'FINISHED' AND OLD.status <> 'FINISHED') EXECUTE FUNCTION lead_ended();

CREATE FUNCTION lead_reopened() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.reporting_webhook_url IS NOT NULL OR EXISTS (
        SELECT FROM webhook_endpoints AS e
        WHERE e.reseller_id = NEW.reseller_id AND (e.merchant_id IS NULL OR e.merchant_id = NEW.merchant_id)
          AND e.status = 'active' AND e.event_types && '{*,lead.reopened}')
    THEN
        INSERT INTO job_outbox (id, job_type, run_at, created_at, max_attempts, unique_key, reseller_id, merchant_id, payload)
        VALUES (job_id(), 'report_lead', clock_timestamp(), clock_timestamp(), 10,
                NEW.id || '/' || NEW.reopen_count || '/reopened', NEW.reseller_id, NEW.merchant_id,
                json_build_object('lead_id', NEW.id, 'reopen_no', NEW.reopen_count, 'is_reopened', true)::text)
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER leads_reopened AFTER UPDATE OF status ON leads FOR EACH ROW
WHEN (OLD.status = 'FINISHED' AND NEW.reopen_count > OLD.reopen_count) EXECUTE FUNCTION lead_reopened();

-- How many leads of a campaign are where: kept, because a page that counted a million of them would take a second. Whoever
-- moves leads writes what changed, one row for each status and outcome of a statement, in the same transaction; nobody
-- waits for a counter that another holds. A loop folds these rows, so that reading them stays cheap.
CREATE TABLE campaign_counts (
    -- As leads name them. A campaign's id is the caller's own, so that it means something only beside its merchant.
    campaign_id        uuid NOT NULL,
    merchant_id        text NOT NULL,
    -- When it changed, or the minute of it; '-infinity' when nobody asks about that minute any more.
    at                 timestamptz NOT NULL DEFAULT clock_timestamp(),
    status             text NOT NULL,
    outcome            text,
    -- More, or fewer.
    leads              bigint NOT NULL,
    attempts           bigint NOT NULL,
    tried              bigint NOT NULL,
    first_finished_at  timestamptz,
    last_finished_at   timestamptz,
    is_folded          boolean NOT NULL DEFAULT false
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
CREATE INDEX campaign_counts_by_campaign ON campaign_counts (campaign_id, merchant_id);
CREATE INDEX campaign_counts_to_fold ON campaign_counts (at) WHERE NOT is_folded;

-- `tried`: whoever was answered and found no agent was tried, though it cost no attempt; and so were, of the leads that wait, those
-- of an earlier order, whatever the new one has not counted yet.
CREATE FUNCTION leads_came() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO campaign_counts (campaign_id, merchant_id, status, outcome, leads, attempts, tried, first_finished_at,
                                 last_finished_at)
    SELECT campaign_id, merchant_id, status, outcome, count(*), sum(attempt_count),
           count(*) FILTER (WHERE attempt_count + no_agent_count + reopen_count > 0), min(finished_at), max(finished_at)
    FROM now_there
    WHERE campaign_id IS NOT NULL
    GROUP BY campaign_id, merchant_id, status, outcome;
    RETURN NULL;
END $$;
CREATE TRIGGER leads_came AFTER INSERT ON leads REFERENCING NEW TABLE AS now_there
FOR EACH STATEMENT EXECUTE FUNCTION leads_came();

CREATE FUNCTION leads_went() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO campaign_counts (campaign_id, merchant_id, status, outcome, leads, attempts, tried)
    SELECT campaign_id, merchant_id, status, outcome, -count(*), -sum(attempt_count),
           -count(*) FILTER (WHERE attempt_count + no_agent_count + reopen_count > 0)
    FROM no_more
    WHERE campaign_id IS NOT NULL
    GROUP BY campaign_id, merchant_id, status, outcome;
    RETURN NULL;
END $$;
CREATE TRIGGER leads_went AFTER DELETE ON leads REFERENCING OLD TABLE AS no_more
FOR EACH STATEMENT EXECUTE FUNCTION leads_went();

-- Most updates of a lead move nothing that is counted: they write no row.
CREATE FUNCTION leads_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO campaign_counts (campaign_id, merchant_id, status, outcome, leads, attempts, tried, first_finished_at,
                                 last_finished_at)
    SELECT campaign_id, merchant_id, status, outcome, sum(leads), sum(leads * attempt_count),
           coalesce(sum(leads) FILTER (WHERE was_tried), 0), min(finished_at), max(finished_at)
    FROM (
        SELECT campaign_id, merchant_id, status, outcome, 1 AS leads, attempt_count,
               attempt_count + no_agent_count + reopen_count > 0 AS was_tried, finished_at
        FROM now_there
        UNION ALL
        SELECT campaign_id, merchant_id, status, outcome, -1, attempt_count,
               attempt_count + no_agent_count + reopen_count > 0, NULL
        FROM no_more
    ) AS change
    WHERE campaign_id IS NOT NULL
    GROUP BY campaign_id, merchant_id, status, outcome
    HAVING sum(leads) <> 0 OR sum(leads * attempt_count) <> 0;
    RETURN NULL;
END $$;
CREATE TRIGGER leads_moved AFTER UPDATE ON leads REFERENCING OLD TABLE AS no_more NEW TABLE AS now_there
FOR EACH STATEMENT EXECUTE FUNCTION leads_moved();

-- Whether a campaign had leads and none of them is left to call. Three looks into an index, however many leads it has.
CREATE FUNCTION campaign_is_done(in_campaign uuid, in_merchant text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT NOT EXISTS (SELECT FROM leads WHERE campaign_id = in_campaign AND status = 'BACKLOG' AND merchant_id = in_merchant)
       AND NOT EXISTS (SELECT FROM leads WHERE campaign_id = in_campaign AND status = 'PROCESSING' AND merchant_id = in_merchant)
       AND EXISTS (SELECT FROM leads WHERE campaign_id = in_campaign AND status = 'FINISHED' AND merchant_id = in_merchant)
$$;

-- Whoever adds a lead to a completed campaign, or calls one of it again, need not know that it was completed. A campaign that
-- is being completed at that very moment is put right by the keeper.
CREATE FUNCTION campaigns_run_again(in_ids uuid[]) RETURNS void LANGUAGE sql AS $$
    UPDATE campaigns
    SET status = 'RUNNING', completed_at = NULL, running_since = clock_timestamp(), updated_at = clock_timestamp()
    WHERE id = ANY(in_ids) AND status = 'COMPLETED'
$$;
CREATE FUNCTION leads_came_to_campaigns() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    found uuid[] := ARRAY(SELECT DISTINCT campaign_id FROM now_there WHERE campaign_id IS NOT NULL);
BEGIN
    IF cardinality(found) > 0 THEN PERFORM campaigns_run_again(found); END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER leads_came_to_campaigns AFTER INSERT ON leads REFERENCING NEW TABLE AS now_there
FOR EACH STATEMENT EXECUTE FUNCTION leads_came_to_campaigns();
CREATE FUNCTION lead_waits_again() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM campaigns_run_again(ARRAY[NEW.campaign_id]);
    RETURN NULL;
END $$;
CREATE TRIGGER lead_waits_again AFTER UPDATE OF status ON leads FOR EACH ROW
WHEN (OLD.status = 'FINISHED' AND NEW.status <> 'FINISHED' AND NEW.campaign_id IS NOT NULL)
EXECUTE FUNCTION lead_waits_again();

-- Reminders: a call at a local time, once or again and again. Each occurrence is one lead.
-- This is the series. `starts_at` and `next_wall` are wall times in `timezone`; `next_at` is the instant of the latter. A series is
-- ACTIVE until its last occurrence has ended, not until that has become a lead: then there is no next one to make.
CREATE TABLE reminders (
    id                     uuid PRIMARY KEY,
    reseller_id            text NOT NULL REFERENCES resellers (id),
    merchant_id            text NOT NULL REFERENCES merchants (id),
    request_id             text CHECK (length(request_id) BETWEEN 1 AND 200),
    request_hash           bytea NOT NULL CHECK (octet_length(request_hash) = 32),
    phone                  text NOT NULL CHECK (phone ~ '^\+[1-9][0-9]{6,14}$'),
    timezone               text NOT NULL,
    starts_at              timestamp NOT NULL,
    rrule                  text CHECK (length(rrule) <= 500),
    message                text CHECK (length(message) <= 2000),
    assistant_id           text CHECK (length(assistant_id) <= 200),
    payload                jsonb NOT NULL DEFAULT '{}',
    carrier                text,
    pool_id                text NOT NULL REFERENCES pools (id),
    -- The reminder has calling windows of its own: they are a layer of policy under its id, and its leads name it.
    has_windows            boolean NOT NULL DEFAULT false,
    priority               smallint NOT NULL DEFAULT 50 CHECK (priority BETWEEN 1 AND 99),
    max_attempts           smallint NOT NULL DEFAULT 3 CHECK (max_attempts BETWEEN 1 AND 20),
    -- An occurrence that nobody made for so long, because nothing ran, is skipped instead of rung late.
    late_s                 int NOT NULL CHECK (late_s BETWEEN 0 AND 86400),
    reporting_webhook_url  text,
    status                 text NOT NULL DEFAULT 'ACTIVE' CHECK (status IN ('ACTIVE', 'PAUSED', 'ENDED')),
    ended_reason           text CHECK (ended_reason IN ('finished', 'cancelled')),
    next_wall              timestamp,
    next_at                timestamptz,
    -- Its number in the rule, from 1.
    next_no                int NOT NULL DEFAULT 1,
    -- The instant of the last one, which every later one comes after.
    last_at                timestamptz,
    created_at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT reminders_request_once UNIQUE (merchant_id, request_id),
    CHECK ((status = 'ENDED') = (ended_reason IS NOT NULL)),
    CONSTRAINT reminders_next_while_active CHECK (next_at IS NULL OR status = 'ACTIVE'),
    CHECK (next_at IS NULL OR next_wall IS NOT NULL)
) WITH (fillfactor = 80);
CREATE INDEX reminders_due ON reminders (next_at, id) WHERE status = 'ACTIVE';
CREATE INDEX reminders_ending ON reminders (id) WHERE status = 'ACTIVE' AND next_at IS NULL;
CREATE INDEX reminders_by_merchant ON reminders (merchant_id, id);
CREATE INDEX reminders_by_reseller ON reminders (reseller_id, id);

-- The unique wall time makes an occurrence once, whoever makes it: it stays the same when the zone's rules change.
CREATE TABLE reminder_occurrences (
    id                uuid PRIMARY KEY,
    reminder_id       uuid NOT NULL REFERENCES reminders (id) ON DELETE CASCADE,
    reseller_id       text NOT NULL,
    merchant_id       text NOT NULL,
    wall_at           timestamp NOT NULL,
    scheduled_at      timestamptz NOT NULL,
    state             text NOT NULL CHECK (state IN
                          ('SCHEDULED', 'PROCESSING', 'COMPLETED', 'PENDING_RETRY', 'FAILED', 'SKIPPED')),
    -- `restored`: it was due before a restore which is settled, and may have rung in the time that the database has lost. Nobody
    -- compares it with the carriers' lists any more.
    skip_reason       text CHECK (skip_reason IN ('asked', 'missed', 'paused', 'cancelled', 'restored')),
    lead_id           uuid UNIQUE REFERENCES leads (id) ON DELETE SET NULL,
    -- The lead's version that this state was read from.
    lead_version      int NOT NULL DEFAULT 0,
    attempt_count     smallint NOT NULL DEFAULT 0,
    max_attempts      smallint NOT NULL,
    -- Attempts that were written to the log, and how many of them were followed by a retry: those that a carrier refused too,
    -- which `attempt_count` does not count.
    attempts_told     smallint NOT NULL DEFAULT 0,
    retries_told      smallint NOT NULL DEFAULT 0,
    next_retry_at     timestamptz,
    last_error        text,
    idempotency_key   text UNIQUE CHECK (length(idempotency_key) <= 64),
    external_call_id  text,
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT reminder_occurrences_once UNIQUE (reminder_id, wall_at),
    CHECK ((state = 'SKIPPED') = (skip_reason IS NOT NULL)),
    CHECK (next_retry_at IS NULL OR state = 'PENDING_RETRY')
) WITH (fillfactor = 70);
CREATE INDEX reminder_occurrences_open ON reminder_occurrences (id)
    WHERE state IN ('SCHEDULED', 'PROCESSING', 'PENDING_RETRY');
-- What is about to ring of a series, without reading all that has rung.
CREATE INDEX reminder_occurrences_open_by_reminder ON reminder_occurrences (reminder_id)
    WHERE state IN ('SCHEDULED', 'PROCESSING', 'PENDING_RETRY');
