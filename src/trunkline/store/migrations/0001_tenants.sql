-- Tenants, their keys and what they may use. Every later table hangs below a merchant of a reseller.

CREATE TABLE resellers (
    id          text PRIMARY KEY CHECK (id ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
    name        text NOT NULL,
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
    created_at      timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX merchants_by_reseller ON merchants (reseller_id);

-- Only the SHA-256 of a key is kept. A key is bound to a merchant, to a reseller, or (both null) to the platform.
CREATE TABLE api_keys (
    id           uuid PRIMARY KEY,
    key_hash     bytea NOT NULL UNIQUE CHECK (octet_length(key_hash) = 32),
    hint         text NOT NULL,
    name         text NOT NULL,
    scopes       text[] NOT NULL CHECK (scopes <@ ARRAY['admin', 'leads', 'router', 'read'] AND cardinality(scopes) > 0),
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
CREATE INDEX numbers_by_pool ON numbers (pool_id);
