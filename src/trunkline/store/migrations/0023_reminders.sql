-- Reminders: a call at a local time, once or again and again. Each occurrence is one lead.

-- The series. `starts_at` and `next_wall` are wall times in `timezone`; `next_at` is the instant of the latter.
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
    CHECK ((status = 'ACTIVE') = (next_at IS NOT NULL)),
    CHECK (next_at IS NULL OR next_wall IS NOT NULL)
) WITH (fillfactor = 80);
CREATE INDEX reminders_due ON reminders (next_at, id) WHERE status = 'ACTIVE';
CREATE INDEX reminders_by_merchant ON reminders (merchant_id, id);
CREATE INDEX reminders_by_reseller ON reminders (reseller_id, id);

-- The unique wall time makes an occurrence once, whoever makes it: it stays the same when the zone's rules change.
CREATE TABLE reminder_occurrences (
    id                uuid PRIMARY KEY,
    reminder_id       uuid NOT NULL REFERENCES reminders (id) ON DELETE CASCADE,
    wall_at           timestamp NOT NULL,
    scheduled_at      timestamptz NOT NULL,
    state             text NOT NULL CHECK (state IN
                          ('SCHEDULED', 'PROCESSING', 'COMPLETED', 'PENDING_RETRY', 'FAILED', 'SKIPPED')),
    skip_reason       text CHECK (skip_reason IN ('asked', 'missed', 'paused', 'cancelled')),
    lead_id           uuid UNIQUE REFERENCES leads (id) ON DELETE SET NULL,
    -- The lead's version that this state was read from.
    lead_version      int NOT NULL DEFAULT 0,
    attempt_count     smallint NOT NULL DEFAULT 0,
    max_attempts      smallint NOT NULL,
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
