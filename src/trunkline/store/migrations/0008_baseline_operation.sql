-- What runs the platform: how far the database has come, who leads, who is running, alarms, and who changed what.

-- How far this database has come. Valkey and every running process remember the number; a database that stands before
-- what they remember was restored to an earlier moment. No installation: nobody has started here yet.
CREATE TABLE continuity (
    only_row      boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    installation  uuid,
    beat          bigint NOT NULL DEFAULT 0,
    beat_at       timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 20);
INSERT INTO continuity DEFAULT VALUES;

-- Each time that Postgres was found at an earlier moment than it had been. While one is not settled, calls may have been
-- placed that this database does not know, and the kill switch is not lifted.
CREATE TABLE restores (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    found_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The last moment that the database, as it was found, had lived through.
    backup_at   timestamptz NOT NULL,
    reason      text NOT NULL,
    settled_at  timestamptz,
    settled_by  text,
    CHECK ((settled_at IS NULL) = (settled_by IS NULL))
);

-- The term grows with every change of leader. A guarded write names its term, and a stale one writes nothing.
CREATE TABLE leaders (
    name        text PRIMARY KEY,
    holder      text,
    term        bigint NOT NULL DEFAULT 0,
    expires_at  timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50);

-- Numbers the projections in Valkey.
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

-- Any process notifies the operators' webhook of alarms, itself and not through a job: the role `jobs` may be what is missing.
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
    -- Not before then: a process is at it, or the last try failed.
    notify_after    timestamptz,
    notify_failures smallint NOT NULL DEFAULT 0,
    -- When the webhook last took a notification, so that an alarm that lasts is sent again.
    notified_at     timestamptz,
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
-- It is asked what somebody did, what was done of a kind, and what was done on a day. Few rows are written here, so that these cost
-- nothing worth counting.
CREATE INDEX audit_log_by_actor ON audit_log (actor, id);
CREATE INDEX audit_log_by_area ON audit_log (split_part(action, '.', 1), id);
CREATE INDEX audit_log_by_time ON audit_log (at);

-- What the console must not take twice: links that were used, and sessions that were signed out, until they would have
-- ended anyway. Whoever is not here was never spent.
CREATE TABLE console_spent (
    id     uuid PRIMARY KEY,
    until  timestamptz NOT NULL
);
CREATE INDEX console_spent_by_end ON console_spent (until);
