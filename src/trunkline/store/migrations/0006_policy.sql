-- Who may be called when and how often, and why somebody was not called.

-- One layer of a calling policy. The subject is '' for the platform, and `merchant/campaign` for a campaign, whose ids
-- are the caller's own.
CREATE TABLE policies (
    scope        text NOT NULL CHECK (scope IN ('platform', 'reseller', 'merchant', 'campaign')),
    subject      text NOT NULL CHECK ((subject = '') = (scope = 'platform')),
    policy       jsonb NOT NULL CHECK (jsonb_typeof(policy) = 'object'),
    version      int NOT NULL DEFAULT 1,
    reseller_id  text REFERENCES resellers (id) ON DELETE CASCADE,
    merchant_id  text REFERENCES merchants (id) ON DELETE CASCADE,
    updated_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_by   text NOT NULL,
    PRIMARY KEY (scope, subject)
);

-- Whom nobody calls: by a merchant, by all merchants of a reseller, by anybody (both null).
CREATE TABLE do_not_call (
    id           uuid PRIMARY KEY,
    phone        text NOT NULL CHECK (phone ~ '^\+[1-9][0-9]{6,14}$'),
    reseller_id  text REFERENCES resellers (id) ON DELETE CASCADE,
    merchant_id  text REFERENCES merchants (id) ON DELETE CASCADE,
    reason       text NOT NULL CHECK (length(reason) BETWEEN 1 AND 200),
    expires_at   timestamptz,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by   text NOT NULL,
    CHECK (merchant_id IS NULL OR reseller_id IS NOT NULL)
);
CREATE UNIQUE INDEX do_not_call_once ON do_not_call (phone, coalesce(reseller_id, ''), coalesce(merchant_id, ''));
CREATE INDEX do_not_call_by_tenant ON do_not_call (reseller_id, merchant_id, id);

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
    checks_hash    bytea NOT NULL,
    claimed_until  timestamptz NOT NULL,
    passed_until   timestamptz NOT NULL DEFAULT '-infinity',
    deferrals      smallint NOT NULL DEFAULT 0,
    last_answer    text
) WITH (fillfactor = 50);
