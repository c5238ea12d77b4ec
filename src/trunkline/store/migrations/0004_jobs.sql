-- Jobs: a transactional outbox. The hot row is narrow; what is finished is moved out, what died lies elsewhere.

-- Numbers the claims. One number for all rows of a claim, never given twice, growing: a fence.
CREATE SEQUENCE job_fences;

CREATE TABLE job_outbox (
    -- The wide and the fixed first: no padding between columns.
    id                  uuid PRIMARY KEY,
    run_at              timestamptz NOT NULL DEFAULT now(),
    created_at          timestamptz NOT NULL DEFAULT now(),
    locked_at           timestamptz,
    lease_expires_at    timestamptz,
    -- The number of its last claim. Whoever renews, completes or fails a job names the claim that it works under.
    fence               bigint NOT NULL DEFAULT 0,
    priority            smallint NOT NULL DEFAULT 50 CHECK (priority BETWEEN 1 AND 99),
    attempt_count       smallint NOT NULL DEFAULT 0,
    max_attempts        smallint NOT NULL DEFAULT 4 CHECK (max_attempts BETWEEN 1 AND 1000),
    -- Its concurrency key is busy: outside of every index that a claim reads, until the key is free.
    parked              boolean NOT NULL DEFAULT false,
    cancel_requested    boolean NOT NULL DEFAULT false,
    job_type            text NOT NULL CHECK (length(job_type) BETWEEN 1 AND 50),
    status              text NOT NULL DEFAULT 'PENDING' CHECK (status IN ('PENDING', 'IN_PROGRESS')),
    locked_by           text,
    unique_key          text CHECK (length(unique_key) BETWEEN 1 AND 200),
    concurrency_key     text CHECK (length(concurrency_key) BETWEEN 1 AND 200),
    reseller_id         text,
    merchant_id         text,
    last_error_code     text,
    last_error_message  text,
    -- JSON as text: it is only carried, and binary COPY takes it as it is.
    payload             text NOT NULL DEFAULT '{}',
    CHECK ((status = 'IN_PROGRESS') = (locked_by IS NOT NULL)),
    CHECK ((status = 'IN_PROGRESS') = (lease_expires_at IS NOT NULL)),
    CHECK (NOT parked OR (status = 'PENDING' AND concurrency_key IS NOT NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05);
-- A lane is the jobs of one type and priority. Claims read lanes in order, from the place where the last one ended.
CREATE INDEX job_outbox_runnable ON job_outbox (job_type, priority, run_at, id)
    WHERE status = 'PENDING' AND concurrency_key IS NULL;
CREATE INDEX job_outbox_runnable_keyed ON job_outbox (job_type, priority, run_at, id)
    WHERE status = 'PENDING' AND concurrency_key IS NOT NULL AND NOT parked;
CREATE INDEX job_outbox_parked ON job_outbox (job_type, concurrency_key, priority, run_at, id) WHERE parked;
CREATE INDEX job_outbox_expired_lease ON job_outbox (lease_expires_at) WHERE status = 'IN_PROGRESS';
CREATE INDEX job_outbox_running_keyed ON job_outbox (job_type, concurrency_key)
    WHERE status = 'IN_PROGRESS' AND concurrency_key IS NOT NULL;
CREATE INDEX job_outbox_by_tenant ON job_outbox (reseller_id, merchant_id, id) WHERE reseller_id IS NOT NULL;
-- A unique key covers PENDING only: a change that arrives during a run must not be swallowed.
CREATE UNIQUE INDEX job_outbox_unique_pending ON job_outbox (job_type, unique_key)
    WHERE status = 'PENDING' AND unique_key IS NOT NULL;

-- Who runs under a concurrency key. A claim locks the key's row before it chooses among the key's jobs.
CREATE TABLE job_keys (
    job_type  text NOT NULL,
    key       text NOT NULL,
    running   int NOT NULL DEFAULT 0 CHECK (running >= 0),
    PRIMARY KEY (job_type, key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

-- A row means: no job of this type is claimed.
CREATE TABLE job_pauses (
    job_type   text PRIMARY KEY,
    reason     text NOT NULL,
    paused_by  text NOT NULL,
    paused_at  timestamptz NOT NULL DEFAULT now()
);

-- What a running job says of itself. Apart from the hot row, which would be rewritten with every word.
CREATE TABLE job_progress (
    job_id      uuid PRIMARY KEY,
    fraction    real NOT NULL CHECK (fraction BETWEEN 0 AND 1),
    note        text,
    updated_at  timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

-- Finished jobs, kept for a while. Ids are UUIDv7, so the primary key is the index of retention too.
CREATE TABLE job_history (
    id                  uuid PRIMARY KEY,
    created_at          timestamptz NOT NULL,
    started_at          timestamptz,
    finished_at         timestamptz NOT NULL DEFAULT now(),
    priority            smallint NOT NULL,
    attempt_count       smallint NOT NULL,
    max_attempts        smallint NOT NULL,
    fraction            real,
    job_type            text NOT NULL,
    outcome             text NOT NULL CHECK (outcome IN ('succeeded', 'cancelled', 'superseded')),
    unique_key          text,
    concurrency_key     text,
    reseller_id         text,
    merchant_id         text,
    worker              text,
    last_error_code     text,
    last_error_message  text,
    note                text,
    result              text
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX job_history_by_tenant ON job_history (reseller_id, merchant_id, id) WHERE reseller_id IS NOT NULL;

-- Dead letters: FAILED jobs, whole, so that they can be replayed.
CREATE TABLE job_dead (
    id                  uuid PRIMARY KEY,
    created_at          timestamptz NOT NULL,
    died_at             timestamptz NOT NULL DEFAULT now(),
    fence               bigint NOT NULL,
    priority            smallint NOT NULL,
    attempt_count       smallint NOT NULL,
    max_attempts        smallint NOT NULL,
    job_type            text NOT NULL,
    unique_key          text,
    concurrency_key     text,
    reseller_id         text,
    merchant_id         text,
    worker              text,
    last_error_code     text,
    last_error_message  text,
    payload             text NOT NULL
);
CREATE INDEX job_dead_by_type ON job_dead (job_type, id);
CREATE INDEX job_dead_by_tenant ON job_dead (reseller_id, merchant_id, id) WHERE reseller_id IS NOT NULL;

-- Every job, wherever it is, as people see it.
CREATE VIEW jobs AS
SELECT id, job_type, status, NULL::text AS outcome, priority, run_at, created_at, locked_at AS started_at,
       NULL::timestamptz AS finished_at, attempt_count, max_attempts, locked_by, lease_expires_at, unique_key,
       concurrency_key, cancel_requested, reseller_id, merchant_id, last_error_code, last_error_message,
       NULL::real AS fraction, NULL::text AS note, NULL::text AS result, payload
FROM job_outbox
UNION ALL
SELECT id, job_type, 'DONE', outcome, priority, NULL, created_at, started_at, finished_at, attempt_count, max_attempts,
       worker, NULL, unique_key, concurrency_key, false, reseller_id, merchant_id, last_error_code, last_error_message,
       fraction, note, result, NULL
FROM job_history
UNION ALL
SELECT id, job_type, 'FAILED', 'dead', priority, NULL, created_at, NULL, died_at, attempt_count, max_attempts,
       worker, NULL, unique_key, concurrency_key, false, reseller_id, merchant_id, last_error_code, last_error_message,
       NULL, NULL, NULL, payload
FROM job_dead;

-- Recurring jobs. `next_at` moves in the transaction that enqueues the tick, so each tick is enqueued once.
CREATE TABLE job_schedules (
    name       text PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 100),
    job_type   text NOT NULL,
    rule       text NOT NULL,
    timezone   text NOT NULL DEFAULT 'UTC',
    payload    text NOT NULL DEFAULT '{}',
    next_at    timestamptz NOT NULL,
    last_at    timestamptz
) WITH (fillfactor = 50);
CREATE INDEX job_schedules_by_time ON job_schedules (next_at);

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

-- What was learnt of a call after its end. The row is the guard against enriching twice.
CREATE TABLE call_enrichments (
    item_id        text PRIMARY KEY CHECK (length(item_id) BETWEEN 1 AND 200),
    reseller_id    text,
    merchant_id    text,
    status         text NOT NULL DEFAULT 'ENRICHING' CHECK (status IN ('ENRICHING', 'READY', 'DISCARDED')),
    source         text NOT NULL DEFAULT '{}',
    recording_ref  text,
    transcript     text,
    data           text,
    created_at     timestamptz NOT NULL DEFAULT now(),
    updated_at     timestamptz NOT NULL DEFAULT now()
);
