-- Tenants, their keys and what they may use: pools, numbers, accounts at carriers, endpoints of webhooks. Every later table hangs
-- below a merchant of a reseller. docs/decisions/0053-schema-baseline.md says how rows carry their tenant.

CREATE TABLE resellers (
    id          text PRIMARY KEY CHECK (id ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
    name        text NOT NULL,
    -- The domain that it belongs to, with its accounts, pools, numbers, pods and leads. NULL: the one that the processes' setting
    -- names, which is the only one there is.
    domain      text CHECK (domain ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
    created_at  timestamptz NOT NULL DEFAULT now()
);

-- Merchant ids are unique over all resellers: the router's merchant config is keyed by them alone.
CREATE TABLE merchants (
    id              text PRIMARY KEY CHECK (id ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
    reseller_id     text NOT NULL REFERENCES resellers (id),
    name            text NOT NULL,
    default_region  text CHECK (default_region ~ '^[A-Z]{2}$'),
    default_pool_id text,
    weight          int NOT NULL DEFAULT 1 CHECK (weight BETWEEN 1 AND 1000),
    -- The most calls at once, over all its leads; no row lends another its share.
    max_concurrent  int CHECK (max_concurrent >= 0),
    -- Whose agents talk: ours, for which a slot is reserved before anybody is dialled, or somebody else's. Only the platform or
    -- the reseller may say that they are elsewhere.
    agents          text NOT NULL DEFAULT 'ours' CHECK (agents IN ('ours', 'elsewhere')),
    created_at      timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX merchants_by_reseller ON merchants (reseller_id);

-- Only the SHA-256 of a key is kept. A key is bound to a merchant, to a reseller, or (both null) to the platform.
CREATE TABLE api_keys (
    id           uuid PRIMARY KEY,
    key_hash     bytea NOT NULL UNIQUE CHECK (octet_length(key_hash) = 32),
    hint         text NOT NULL,
    name         text NOT NULL,
    -- `jobs`: keys that may enqueue jobs, and nothing else.
    scopes       text[] NOT NULL
        CHECK (scopes <@ ARRAY['admin', 'leads', 'router', 'read', 'jobs'] AND cardinality(scopes) > 0),
    reseller_id  text REFERENCES resellers (id),
    merchant_id  text REFERENCES merchants (id),
    created_at   timestamptz NOT NULL DEFAULT now(),
    created_by   text NOT NULL,
    expires_at   timestamptz,
    revoked_at   timestamptz,
    CHECK (merchant_id IS NULL OR reseller_id IS NOT NULL)
);
CREATE INDEX api_keys_by_reseller ON api_keys (reseller_id);

CREATE TABLE pools (
    id           text PRIMARY KEY CHECK (id ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
    reseller_id  text REFERENCES resellers (id),
    merchant_id  text REFERENCES merchants (id),
    name         text NOT NULL,
    -- Leads that found no channel here for so long may use another pool's numbers.
    overflow_pool_id  text REFERENCES pools (id) CHECK (overflow_pool_id <> id),
    overflow_after_s  float8 CHECK (overflow_after_s >= 0),
    -- Numbers of the callee's region are preferred.
    region_affinity   boolean NOT NULL DEFAULT false,
    -- As for merchants.
    agents       text NOT NULL DEFAULT 'ours' CHECK (agents IN ('ours', 'elsewhere')),
    created_at   timestamptz NOT NULL DEFAULT now(),
    CHECK (merchant_id IS NULL OR reseller_id IS NOT NULL),
    CHECK ((overflow_pool_id IS NULL) = (overflow_after_s IS NULL))
);
ALTER TABLE merchants ADD FOREIGN KEY (default_pool_id) REFERENCES pools (id);

-- No foreign key names a number: the dial locks number rows, and a key's share lock would stand in its way.
CREATE TABLE numbers (
    id            uuid PRIMARY KEY,
    e164          text NOT NULL UNIQUE CHECK (e164 ~ '^\+[1-9][0-9]{6,14}$'),
    pool_id       text NOT NULL REFERENCES pools (id),
    reseller_id   text REFERENCES resellers (id),
    merchant_id   text REFERENCES merchants (id),
    carrier       text NOT NULL,
    account       text NOT NULL DEFAULT 'default',
    max_channels  int NOT NULL CHECK (max_channels BETWEEN 0 AND 10000),
    -- How fast it may start calls, beside the pace of its account. NULL: as fast as that.
    starts_per_s  float8 CHECK (starts_per_s > 0),
    status        text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'draining', 'disabled')),
    version       int NOT NULL DEFAULT 1,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(),
    CHECK (merchant_id IS NULL OR reseller_id IS NOT NULL)
);
-- Without Valkey, free channels of a pool are looked for a few numbers at a time, from where the last look ended. A pool may
-- have ten thousand numbers: an index of the pool alone would sort all of them for each look.
CREATE INDEX numbers_by_pool_in_order ON numbers (pool_id, id);
CREATE INDEX numbers_by_account ON numbers (carrier, account);

-- Where a phone is, as far as its first digits tell: the country, and in North America the area.
CREATE FUNCTION phone_region(phone text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    -- The longest match counts, so three digits must say that they are not one or two.
    SELECT substring(phone FROM '^\+(?:1\d{3}|7|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58]'
                                '|(?!1|7|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58])\d{3})')
$$;

-- Credentials are sealed under TRUNKLINE_SECRET_KEY and name their account inside: nothing here opens one by itself.
CREATE TABLE carrier_accounts (
    id            uuid PRIMARY KEY,
    carrier       text NOT NULL CHECK (carrier ~ '^[a-z][a-z0-9_-]{0,31}$'),
    name          text NOT NULL CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$'),
    credentials   bytea NOT NULL,
    base_url      text,
    starts_per_s  double precision CHECK (starts_per_s > 0),
    status        text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'disabled')),
    version       int NOT NULL DEFAULT 1,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT carrier_accounts_once UNIQUE (carrier, name)
);

-- Who is taken when a number is called, and what the others get. Without a row everybody is taken while a channel is
-- free. No foreign key names the number: the dial locks number rows, and a key's share lock would stand in its way.
CREATE TABLE inbound_policies (
    number_id    uuid PRIMARY KEY,
    admits       text NOT NULL CHECK (admits IN ('everybody', 'whitelist', 'nobody')),
    whitelist    text[] NOT NULL DEFAULT '{}',
    -- Whose call it is on a number that several merchants share.
    merchant_id  text REFERENCES merchants (id),
    otherwise    text NOT NULL CHECK (otherwise IN ('reject', 'message', 'redirect')),
    message      text CHECK (length(message) BETWEEN 1 AND 500),
    redirect_to  text CHECK (redirect_to ~ '^\+[1-9][0-9]{6,14}$'),
    updated_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK ((otherwise = 'redirect') = (redirect_to IS NOT NULL)),
    CHECK ((otherwise = 'message') = (message IS NOT NULL))
);

-- Where a tenant wants to hear of events. The secret is encrypted under TRUNKLINE_SECRET_KEY.
CREATE TABLE webhook_endpoints (
    id                  uuid PRIMARY KEY,
    reseller_id         text NOT NULL REFERENCES resellers (id),
    merchant_id         text REFERENCES merchants (id),
    url                 text NOT NULL CHECK (length(url) <= 2000),
    -- `*` stands for every type. None: only what is sent to its URL on purpose.
    event_types         text[] NOT NULL DEFAULT '{*}',
    secret_sealed       bytea NOT NULL,
    -- Signs too until then, so that a receiver may change over at its leisure.
    old_secret_sealed   bytea,
    old_secret_until    timestamptz,
    status              text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'disabled')),
    disabled_reason     text,
    created_at          timestamptz NOT NULL DEFAULT now(),
    updated_at          timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX webhook_endpoints_once ON webhook_endpoints (reseller_id, coalesce(merchant_id, ''), url);

-- Kinds of mailboxes that may be appended to over HTTP: whose they are, and what signs the appends of those who have no
-- key. The kind is the unit of ownership: a mailbox belongs to whom its kind belongs, so no two tenants share one.
CREATE TABLE mailbox_kinds (
    kind                text PRIMARY KEY CHECK (kind ~ '^[a-z][a-z0-9_-]{0,62}$'),
    reseller_id         text REFERENCES resellers (id),
    merchant_id         text REFERENCES merchants (id),
    secret_sealed       bytea NOT NULL,
    -- Good too until then, so that senders may change over at their leisure.
    old_secret_sealed   bytea,
    old_secret_until    timestamptz,
    created_at          timestamptz NOT NULL DEFAULT now(),
    CHECK (merchant_id IS NULL OR reseller_id IS NOT NULL)
);
