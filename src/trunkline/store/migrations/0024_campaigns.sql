-- Campaigns: many leads under one policy. The policy is a layer in `policies`, what holds them back is a row in `controls`;
-- this says what a campaign is and what it is meant to do.
CREATE TABLE campaigns (
    id                     uuid PRIMARY KEY,
    reseller_id            text NOT NULL REFERENCES resellers (id),
    merchant_id            text NOT NULL REFERENCES merchants (id),
    request_id             text CHECK (length(request_id) BETWEEN 1 AND 200),
    request_hash           bytea NOT NULL CHECK (octet_length(request_hash) = 32),
    name                   text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    status                 text NOT NULL DEFAULT 'DRAFT'
                               CHECK (status IN ('DRAFT', 'RUNNING', 'PAUSED', 'STOPPING', 'STOPPED')),
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
    created_at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT campaigns_request_once UNIQUE (merchant_id, request_id),
    CHECK (ends_at > starts_at)
);
CREATE INDEX campaigns_by_merchant ON campaigns (merchant_id, id);
CREATE INDEX campaigns_by_reseller ON campaigns (reseller_id, id);
-- What somebody has to do something about: end its leads, or give them what was edited.
CREATE INDEX campaigns_unsettled ON campaigns (id) WHERE status <> 'STOPPED';
