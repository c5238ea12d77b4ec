-- Claim due jobs, lane by lane in the given order, each from its floor on: below it lie only the remains of jobs that
-- were claimed before, and stepping over those is what makes a queue slow. statement_timestamp() and not
-- clock_timestamp(): a volatile bound is no index condition, and every future job would be read. Jobs that are due
-- within $8 seconds are taken too: whoever claims them lets them begin at their moment.
-- Rows come back in no order, each with the moment of the look; if there are none, that moment comes alone.
-- Nobody waits for the disk: a claim that goes down with the server was never made. Its fence fits nothing, and none after
-- it is as small. Only for this transaction, so that a pooler can stand between.
WITH lanes AS (
    SELECT l.job_type, l.priority, l.floor_at, l.floor_id
    FROM unnest($1::text[], $2::smallint[], $3::timestamptz[], $4::uuid[])
         WITH ORDINALITY AS l (job_type, priority, floor_at, floor_id, place)
    WHERE NOT EXISTS (SELECT FROM job_pauses AS p WHERE p.job_type = l.job_type)
    ORDER BY l.place
), due AS (
    SELECT j.place
    FROM lanes AS l CROSS JOIN LATERAL (
        SELECT o.ctid AS place FROM job_outbox AS o
        WHERE o.status = 'PENDING' AND o.concurrency_key IS NULL AND o.job_type = l.job_type
          AND o.priority = l.priority AND (o.run_at, o.id) >= (l.floor_at, l.floor_id)
          AND o.run_at <= statement_timestamp() + make_interval(secs => $8)
        ORDER BY o.run_at, o.id
        LIMIT $5
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS j
    LIMIT $5
), claimed AS (
    UPDATE job_outbox
    SET status = 'IN_PROGRESS', attempt_count = attempt_count + 1,
        fence = greatest(fence + 1, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint),
        locked_by = $6, locked_at = greatest(statement_timestamp(), run_at),
        lease_expires_at = clock_timestamp() + make_interval(secs => $7)
    WHERE ctid = ANY (ARRAY(SELECT place FROM due))
    RETURNING id, fence, job_type, priority, run_at, created_at, attempt_count, max_attempts, unique_key,
              concurrency_key, reseller_id, merchant_id, payload
)
SELECT statement_timestamp() AS looked_at, c.*
FROM (SELECT set_config('synchronous_commit', 'off', true) AS now) AS unsynced
LEFT JOIN claimed AS c ON unsynced.now = 'off'
