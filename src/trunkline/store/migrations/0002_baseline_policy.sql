-- Who may be called when and how often, what is stopped, and what is switched on.

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
    changed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The number that `control_versions.flags` had after its last change: of two who edit what both have read, the second is
    -- refused.
    version      bigint NOT NULL DEFAULT 0
);

-- A row from when `event_dispatch` is turned on for a merchant until all of its leads that were due before have ended: the other
-- system has called them, and no intent takes one. Written in the transaction of the flag, so nobody sees one without the other.
CREATE TABLE cutovers (
    merchant_id  text PRIMARY KEY,
    -- NULL: a hosted flag service says that the other system still calls them.
    since        timestamptz
);
