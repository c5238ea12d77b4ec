-- What steers the platform: controls, flags, leadership, how far the database has come, alarms, and who changed what.

-- One row. A change of a control or a flag raises its number in the transaction of the change: whoever has read a number
-- has everything up to it. The greatest `changed_at` would not do: an earlier one may commit later, and be missed.
CREATE TABLE control_versions (
    only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    controls  bigint NOT NULL DEFAULT 0,
    flags     bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO control_versions DEFAULT VALUES;

-- No row means running. `scope` says what is stopped, `subject` which one ('' for the whole platform). The subject of a
-- campaign is `merchant/campaign`: ids of campaigns are the caller's, and one tenant's must not stop another's.
CREATE TABLE controls (
    scope        text NOT NULL CHECK (scope IN
                     ('kill_switch', 'promoter', 'reseller', 'merchant', 'campaign', 'number', 'carrier')),
    subject      text NOT NULL DEFAULT '' CHECK ((subject = '') = (scope IN ('kill_switch', 'promoter'))),
    -- Platform, reseller and merchant each have a stop of their own: none lifts another's by setting or ending one.
    set_by       text NOT NULL CHECK (set_by IN ('platform', 'reseller', 'merchant')),
    reason       text NOT NULL CHECK (length(reason) BETWEEN 1 AND 500),
    changed_by   text NOT NULL,
    changed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    stopped_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When the stop ends; NULL: when somebody lifts it. From then on the share of starts grows to 1 within `ramp_s`.
    ends_at      timestamptz,
    ramp_s       int NOT NULL CHECK (ramp_s BETWEEN 0 AND 86400),
    reseller_id  text,
    merchant_id  text,
    PRIMARY KEY (scope, subject, set_by)
);

-- `resellers` and `merchants` say true (on) or false (off) of those they name; the percentage decides for the others.
CREATE TABLE flags (
    name         text PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_]{0,62}$'),
    enabled      boolean NOT NULL,
    percentage   smallint NOT NULL CHECK (percentage BETWEEN 0 AND 100),
    resellers    jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(resellers) = 'object'),
    merchants    jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(merchants) = 'object'),
    reason       text NOT NULL CHECK (length(reason) BETWEEN 1 AND 500),
    changed_by   text NOT NULL,
    changed_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- How far this database has come. Valkey and every running process remember the number; a database that stands before
-- what they remember was restored to an earlier moment. No installation: nobody has started here yet.
CREATE TABLE continuity (
    only_row      boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    installation  uuid,
    beat          bigint NOT NULL DEFAULT 0,
    beat_at       timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 20);
INSERT INTO continuity DEFAULT VALUES;

-- The term grows with every change of leader. A guarded write names its term, and a stale one writes nothing.
CREATE TABLE leaders (
    name        text PRIMARY KEY,
    holder      text,
    term        bigint NOT NULL DEFAULT 0,
    expires_at  timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50);

CREATE SEQUENCE bus_epochs;

-- Who is running. A process that stops takes its row away; one that dies falls silent.
CREATE TABLE processes (
    id          text PRIMARY KEY,
    roles       text[] NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at     timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

-- What all processes counted, added up by minute, for alarms that no single process can raise.
CREATE TABLE measures (
    minute   timestamptz NOT NULL,
    name     text NOT NULL,
    subject  text NOT NULL DEFAULT '',
    value    double precision NOT NULL,
    PRIMARY KEY (minute, name, subject)
) WITH (fillfactor = 50);

-- What alarms are judged by. It outlives a change of leader, which is when things tend to go wrong.
CREATE TABLE alarm_samples (
    at       timestamptz NOT NULL,
    name     text NOT NULL,
    subject  text NOT NULL DEFAULT '',
    value    double precision NOT NULL
);
CREATE INDEX alarm_samples_by_time ON alarm_samples (at);

CREATE TABLE alarms (
    id              uuid PRIMARY KEY,
    name            text NOT NULL,
    subject         text NOT NULL DEFAULT '',
    severity        text NOT NULL CHECK (severity IN ('page', 'urgent', 'warning')),
    detail          jsonb NOT NULL DEFAULT '{}',
    raised_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    cleared_at      timestamptz,
    cleared_by      text,
    raise_told_at   timestamptz,
    clear_told_at   timestamptz,
    reseller_id     text,
    merchant_id     text,
    CHECK ((cleared_at IS NULL) = (cleared_by IS NULL))
);
CREATE UNIQUE INDEX alarms_open_once ON alarms (name, subject) WHERE cleared_at IS NULL;
CREATE INDEX alarms_untold ON alarms (id)
    WHERE raise_told_at IS NULL OR (cleared_at IS NOT NULL AND clear_told_at IS NULL);
CREATE INDEX alarms_by_reseller ON alarms (reseller_id, id) WHERE reseller_id IS NOT NULL;

-- Ids grow in the order of arrival, so a list by id is a list by time.
CREATE TABLE audit_log (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at           timestamptz NOT NULL DEFAULT now(),
    actor        text NOT NULL,
    action       text NOT NULL,
    subject      text NOT NULL,
    reason       text,
    details      jsonb NOT NULL DEFAULT '{}',
    reseller_id  text,
    merchant_id  text
);
CREATE INDEX audit_log_by_reseller ON audit_log (reseller_id, id) WHERE reseller_id IS NOT NULL;
CREATE INDEX audit_log_by_subject ON audit_log (subject, id);
