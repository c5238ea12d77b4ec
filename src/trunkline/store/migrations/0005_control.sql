-- What steers the platform: controls, leadership, the epoch of Valkey's memory, and who changed what.

-- No row means running. `scope` says what is stopped; `subject` says which one ('' for the whole platform).
CREATE TABLE controls (
    scope       text NOT NULL CHECK (scope IN
                    ('kill_switch', 'promoter', 'reseller', 'merchant', 'campaign', 'number', 'carrier')),
    subject     text NOT NULL DEFAULT '',
    reason      text NOT NULL,
    changed_by  text NOT NULL,
    changed_at  timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz,
    PRIMARY KEY (scope, subject)
);

-- The term grows with every change of leader. A guarded write names its term, and a stale one writes nothing.
CREATE TABLE leaders (
    name        text PRIMARY KEY,
    holder      text,
    term        bigint NOT NULL DEFAULT 0,
    expires_at  timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50);

CREATE SEQUENCE bus_epochs;

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
CREATE INDEX audit_log_by_time ON audit_log (at DESC);
CREATE INDEX audit_log_by_reseller ON audit_log (reseller_id, at DESC);
