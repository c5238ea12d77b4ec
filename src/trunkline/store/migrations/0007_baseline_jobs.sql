-- Jobs: a transactional outbox. The hot row is narrow; what is finished is moved out, what died lies elsewhere. This file stands
-- alone: an application has it in a schema of its own, without anything else of the platform.

CREATE TABLE job_outbox (
    -- The wide and the fixed first: no padding between columns.
    id                  uuid PRIMARY KEY,
    run_at              timestamptz NOT NULL DEFAULT now(),
    created_at          timestamptz NOT NULL DEFAULT now(),
    locked_at           timestamptz,
    lease_expires_at    timestamptz,
    -- The number of its last claim: a moment, counted up per row. A sequence could go back with a claim that is lost when the
    -- server crashes, and would give its number to somebody else. Whoever renews, completes or fails a job names the claim that it works under.
    fence               bigint NOT NULL DEFAULT 0,
    priority            smallint NOT NULL DEFAULT 50 CHECK (priority BETWEEN 1 AND 99),
    attempt_count       smallint NOT NULL DEFAULT 0,
    max_attempts        smallint NOT NULL DEFAULT 4 CHECK (max_attempts BETWEEN 1 AND 1000),
    -- Its concurrency key is busy: outside of every index that a claim reads, until the key is free.
    parked              boolean NOT NULL DEFAULT false,
    cancel_requested    boolean NOT NULL DEFAULT false,
    -- Enqueued while another open transaction held its unique key: outside of the unique index, see `job_insert`.
    beside              boolean NOT NULL DEFAULT false,
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
-- A unique key covers PENDING only: a change that arrives during a run must not be swallowed. It belongs to the tenant of its job:
-- two tenants that choose the same word for a key mean two jobs.
CREATE UNIQUE INDEX job_outbox_unique_pending ON job_outbox (job_type, unique_key, reseller_id, merchant_id)
    NULLS NOT DISTINCT WHERE status = 'PENDING' AND unique_key IS NOT NULL AND NOT beside;

-- Who runs under a concurrency key. A claim locks the key's row before it chooses among the key's jobs.
CREATE TABLE job_keys (
    job_type     text NOT NULL,
    key          text NOT NULL,
    -- The platform itself is written as two empty strings: a primary key takes no NULL.
    reseller_id  text NOT NULL DEFAULT '',
    merchant_id  text NOT NULL DEFAULT '',
    running      int NOT NULL DEFAULT 0 CHECK (running >= 0),
    PRIMARY KEY (job_type, key, reseller_id, merchant_id)
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
-- What follows a lead, or any other item, is found from the item: its jobs carry its id in their unique keys.
CREATE INDEX job_history_by_key ON job_history (unique_key) WHERE unique_key IS NOT NULL;

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
CREATE INDEX job_dead_by_key ON job_dead (unique_key) WHERE unique_key IS NOT NULL;

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

-- A UUIDv7, as the library makes them: the history is read and forgotten in the order of ids. Postgres has a function for
-- it from 18 on.
CREATE FUNCTION job_id() RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid()) PLACING
        substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6), 52, 1), 53, 1),
        'hex')::uuid
$$;

-- Two transactions that enqueue under the same unique keys do not wait for each other's end: in opposite order they would wait
-- for ever. Who finds a key in another's open transaction enqueues beside it, outside of the unique index, and both jobs run:
-- so it would be if the other had committed and its job had been claimed in between. A moment is waited all the same, because
-- most transactions end within it.
--
-- Enqueue jobs, some of which have unique keys; no two the same. All in one statement, in the order of their keys; if somebody
-- holds one of these, one by one. The caller's lock_timeout is as before when the function returns.
CREATE FUNCTION job_insert(
    in_ids uuid[], in_types text[], in_priorities smallint[], in_run_ats timestamptz[], in_max_attempts smallint[],
    in_unique_keys text[], in_concurrency_keys text[], in_resellers text[], in_merchants text[], in_payloads text[]
) RETURNS SETOF job_outbox LANGUAGE plpgsql SET lock_timeout = '50ms' SET search_path FROM CURRENT AS $$
DECLARE
    done uuid[];
    place int;
    placed uuid;
BEGIN
    BEGIN
        WITH pending AS (
            INSERT INTO job_outbox (id, job_type, priority, run_at, max_attempts, unique_key, concurrency_key,
                                    reseller_id, merchant_id, payload)
            SELECT j.id, j.job_type, j.priority, greatest(j.run_at, now()), j.max_attempts, j.unique_key,
                   j.concurrency_key, j.reseller_id, j.merchant_id, j.payload
            FROM unnest(in_ids, in_types, in_priorities, in_run_ats, in_max_attempts, in_unique_keys, in_concurrency_keys,
                        in_resellers, in_merchants, in_payloads)
                 AS j (id, job_type, priority, run_at, max_attempts, unique_key, concurrency_key, reseller_id, merchant_id,
                       payload)
            ORDER BY j.job_type COLLATE "C", coalesce(j.unique_key, '') COLLATE "C", coalesce(j.reseller_id, '') COLLATE "C",
                     coalesce(j.merchant_id, '') COLLATE "C", j.id
            ON CONFLICT (job_type, unique_key, reseller_id, merchant_id)
                WHERE status = 'PENDING' AND unique_key IS NOT NULL AND NOT beside
            DO UPDATE SET run_at = least(job_outbox.run_at, excluded.run_at),
                          priority = least(job_outbox.priority, excluded.priority)
            RETURNING id
        )
        SELECT array_agg(p.id) INTO done FROM pending AS p;
    EXCEPTION WHEN lock_not_available THEN
        done := NULL;
    END;
    IF done IS NULL THEN
        FOR place IN 1 .. cardinality(in_ids) LOOP
            BEGIN
                INSERT INTO job_outbox (id, job_type, priority, run_at, max_attempts, unique_key, concurrency_key,
                                        reseller_id, merchant_id, payload)
                VALUES (in_ids[place], in_types[place], in_priorities[place], greatest(in_run_ats[place], now()),
                        in_max_attempts[place], in_unique_keys[place], in_concurrency_keys[place], in_resellers[place],
                        in_merchants[place], in_payloads[place])
                ON CONFLICT (job_type, unique_key, reseller_id, merchant_id)
                    WHERE status = 'PENDING' AND unique_key IS NOT NULL AND NOT beside
                DO UPDATE SET run_at = least(job_outbox.run_at, excluded.run_at),
                              priority = least(job_outbox.priority, excluded.priority)
                RETURNING id INTO placed;
            EXCEPTION WHEN lock_not_available THEN
                INSERT INTO job_outbox (id, job_type, priority, run_at, max_attempts, unique_key, concurrency_key,
                                        reseller_id, merchant_id, payload, beside)
                VALUES (in_ids[place], in_types[place], in_priorities[place], greatest(in_run_ats[place], now()),
                        in_max_attempts[place], in_unique_keys[place], in_concurrency_keys[place], in_resellers[place],
                        in_merchants[place], in_payloads[place], true)
                RETURNING id INTO placed;
            END;
            done := done || placed;
        END LOOP;
    END IF;
    RETURN QUERY SELECT o.* FROM job_outbox AS o WHERE o.id = ANY (done);
END $$;

-- Jobs from anywhere: two functions that put jobs into the outbox in the transaction of whoever calls them. They find the
-- tables by the schema in which they were made, whatever search path the caller has, and leave nothing of it changed.

-- For the library, from any driver: a JSON array of jobs in, a JSON array of what is pending out, in the order of its keys.
-- Text both ways, so that no driver has to know a type. No two of the jobs may have the same unique key.
CREATE FUNCTION enqueue_jobs(in_jobs text) RETURNS text LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    enqueued text;
BEGIN
    WITH given AS (
        SELECT array_agg(j.id) AS ids, array_agg(j.job_type) AS types, array_agg(j.priority) AS priorities,
               array_agg(j.run_at) AS run_ats, array_agg(j.max_attempts) AS max_attempts,
               array_agg(j.unique_key) AS unique_keys, array_agg(j.concurrency_key) AS concurrency_keys,
               array_agg(j.reseller_id) AS resellers, array_agg(j.merchant_id) AS merchants,
               array_agg(j.payload) AS payloads
        FROM (SELECT * FROM json_to_recordset(in_jobs::json) AS r (
                  id uuid, job_type text, priority smallint, run_at timestamptz, max_attempts smallint, unique_key text,
                  concurrency_key text, reseller_id text, merchant_id text, payload text)
              ORDER BY r.job_type COLLATE "C", coalesce(r.unique_key, '') COLLATE "C",
                       coalesce(r.reseller_id, '') COLLATE "C", coalesce(r.merchant_id, '') COLLATE "C", r.id) AS j
    ), pending AS (
        SELECT p.id, p.job_type, p.priority, p.unique_key, p.concurrency_key, p.run_at, p.reseller_id, p.merchant_id
        FROM given AS g CROSS JOIN LATERAL job_insert(
            g.ids, g.types, g.priorities, g.run_ats, g.max_attempts, g.unique_keys, g.concurrency_keys, g.resellers,
            g.merchants, g.payloads) AS p
        WHERE g.ids IS NOT NULL
    )
    SELECT json_agg(row_to_json(p)) INTO enqueued FROM pending AS p;
    RETURN coalesce(enqueued, '[]');
END $$;

-- For whoever writes SQL: enqueue one job, and return its id, or that of the pending job with the same unique key. It
-- exists when the caller's transaction is committed, and is found within a second. `wake` has it found at once, by a
-- NOTIFY in the caller's transaction: commits that notify wait for each other in all of the database, so it is for those
-- who commit seldom.
CREATE FUNCTION enqueue_job(
    job_type text,
    payload jsonb DEFAULT '{}',
    run_at timestamptz DEFAULT NULL,
    priority int DEFAULT 50,
    unique_key text DEFAULT NULL,
    concurrency_key text DEFAULT NULL,
    max_attempts int DEFAULT 4,
    reseller_id text DEFAULT NULL,
    merchant_id text DEFAULT NULL,
    wake boolean DEFAULT false
) RETURNS uuid LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    job json;
BEGIN
    IF job_type IS NULL OR job_type !~ '^[a-z][a-z0-9_]{0,49}$' THEN
        RAISE EXCEPTION '% is no name for a job type: up to 50 small letters, digits and underscores',
            coalesce(quote_literal(job_type), 'NULL') USING ERRCODE = 'check_violation';
    END IF;
    IF payload IS NULL OR octet_length(payload::text) > 262144 THEN
        RAISE EXCEPTION 'The payload of job % must be JSON of at most 262144 bytes; store more elsewhere and put its id '
            'into the job', job_type USING ERRCODE = 'check_violation';
    END IF;
    job := enqueue_jobs(json_build_array(json_build_object(
        'id', job_id(), 'job_type', job_type, 'priority', priority, 'run_at', run_at, 'max_attempts', max_attempts,
        'unique_key', unique_key, 'concurrency_key', concurrency_key, 'reseller_id', reseller_id,
        'merchant_id', merchant_id, 'payload', payload::text))::text)::json -> 0;
    IF wake THEN
        -- As `jobs/wakeups.py` writes it: where to look, and from which microsecond on.
        PERFORM pg_notify('trunkline_jobs', format('%s %s %s %s', job ->> 'job_type', job ->> 'priority',
            ((job ->> 'concurrency_key') IS NOT NULL)::int,
            (extract(epoch FROM (job ->> 'run_at')::timestamptz) * 1000000)::bigint - 1));
    END IF;
    RETURN job ->> 'id';
END $$;
