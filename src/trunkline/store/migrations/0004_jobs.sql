-- Jobs: a transactional outbox. The hot row is narrow; what is finished is moved out.

CREATE TABLE job_outbox (
    id                  uuid PRIMARY KEY,
    job_type            text NOT NULL,
    payload             jsonb NOT NULL DEFAULT '{}',
    status              text NOT NULL DEFAULT 'PENDING' CHECK (status IN ('PENDING', 'IN_PROGRESS', 'DONE', 'FAILED')),
    priority            smallint NOT NULL DEFAULT 50,
    run_at              timestamptz NOT NULL DEFAULT now(),
    attempt_count       int NOT NULL DEFAULT 0,
    max_attempts        int NOT NULL DEFAULT 3,
    fence               bigint NOT NULL DEFAULT 0,
    locked_by           text,
    locked_at           timestamptz,
    lease_expires_at    timestamptz,
    unique_key          text,
    concurrency_key     text,
    last_error_code     text,
    last_error_message  text,
    created_at          timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200);
CREATE INDEX job_outbox_runnable ON job_outbox (job_type, priority, run_at, id) WHERE status = 'PENDING';
CREATE INDEX job_outbox_expired_lease ON job_outbox (lease_expires_at) WHERE status = 'IN_PROGRESS';
-- A unique key covers PENDING only: a change that arrives during a run must not be swallowed.
CREATE UNIQUE INDEX job_outbox_unique_pending ON job_outbox (job_type, unique_key)
    WHERE status = 'PENDING' AND unique_key IS NOT NULL;

CREATE TABLE job_dead (
    id                  uuid PRIMARY KEY,
    job_type            text NOT NULL,
    payload             jsonb NOT NULL,
    priority            smallint NOT NULL,
    attempt_count       int NOT NULL,
    max_attempts        int NOT NULL,
    unique_key          text,
    concurrency_key     text,
    last_error_code     text,
    last_error_message  text,
    created_at          timestamptz NOT NULL,
    died_at             timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX job_dead_by_time ON job_dead (died_at DESC);
