-- Two transactions that enqueue under the same unique keys do not wait for each other's end: in opposite order they would wait
-- for ever. Who finds a key in another's open transaction enqueues beside it, outside of the unique index, and both jobs run:
-- so it would be if the other had committed and its job had been claimed in between. A moment is waited all the same, because
-- most transactions end within it.
ALTER TABLE job_outbox ADD COLUMN beside boolean NOT NULL DEFAULT false;
DROP INDEX job_outbox_unique_pending_of_tenant;
CREATE UNIQUE INDEX job_outbox_unique_pending ON job_outbox (job_type, unique_key, reseller_id, merchant_id)
    NULLS NOT DISTINCT WHERE status = 'PENDING' AND unique_key IS NOT NULL AND NOT beside;

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

-- As in migration 0054, by the function above.
CREATE OR REPLACE FUNCTION enqueue_jobs(in_jobs text) RETURNS text LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
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
