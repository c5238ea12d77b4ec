-- Jobs from anywhere: two functions that put jobs into the outbox in the transaction of whoever calls them. They find the
-- tables by the schema in which they were made, whatever search path the caller has, and leave nothing of it changed.

-- A UUIDv7, as the library makes them: the history is read and forgotten in the order of ids. Postgres has a function for
-- it from 18 on.
CREATE OR REPLACE FUNCTION job_id() RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid()) PLACING
        substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6), 52, 1), 53, 1),
        'hex')::uuid
$$;

-- For the library, from any driver: a JSON array of jobs in, a JSON array of what is pending out, in the order of its keys.
-- Text both ways, so that no driver has to know a type. No two of the jobs may have the same unique key.
-- The INSERT is that of `queries/jobs/insert.sql`, which says why the order of keys and why the UPDATE of a twin.
CREATE FUNCTION enqueue_jobs(in_jobs text) RETURNS text LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    enqueued text;
BEGIN
    WITH pending AS (
        INSERT INTO job_outbox (id, job_type, priority, run_at, max_attempts, unique_key, concurrency_key,
                                reseller_id, merchant_id, payload)
        SELECT j.id, j.job_type, j.priority, greatest(j.run_at, now()), j.max_attempts, j.unique_key,
               j.concurrency_key, j.reseller_id, j.merchant_id, j.payload
        FROM json_to_recordset(in_jobs::json) AS j (
            id uuid, job_type text, priority smallint, run_at timestamptz, max_attempts smallint, unique_key text,
            concurrency_key text, reseller_id text, merchant_id text, payload text)
        ORDER BY j.job_type COLLATE "C", coalesce(j.unique_key, '') COLLATE "C", coalesce(j.reseller_id, '') COLLATE "C",
                 coalesce(j.merchant_id, '') COLLATE "C", j.id
        ON CONFLICT (job_type, unique_key, reseller_id, merchant_id)
            WHERE status = 'PENDING' AND unique_key IS NOT NULL
        DO UPDATE SET run_at = least(job_outbox.run_at, excluded.run_at),
                      priority = least(job_outbox.priority, excluded.priority)
        RETURNING id, job_type, priority, unique_key, concurrency_key, run_at, reseller_id, merchant_id
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
        -- As `jobs/pokes.py` writes it: where to look, and from which microsecond on.
        PERFORM pg_notify('trunkline_jobs', format('%s %s %s %s', job ->> 'job_type', job ->> 'priority',
            ((job ->> 'concurrency_key') IS NOT NULL)::int,
            (extract(epoch FROM (job ->> 'run_at')::timestamptz) * 1000000)::bigint - 1));
    END IF;
    RETURN job ->> 'id';
END $$;
