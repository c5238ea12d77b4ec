-- What a call does, finds its rows by their keys, however the tables have grown since its plan was made. A plan is made
-- once for a connection, often while the tables are young, and kept: one that reads all of a small table, or all
-- mailboxes of a kind, reads all of a large one too, until the table is analyzed. Measured at 200 dials a second on a
-- new database: 400 rows of attempts and 450 entries of mailboxes were read for each dial, and more with every one.
-- So the planner is left one way: row by row, through an index.

ALTER FUNCTION mailbox_lock(text[], text[], int)
    SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off;

-- As in migration 0003, which says what is claimed, why the events are read by a later statement, and why nobody waits
-- for the disk. Mailboxes that were nudged are looked up by their keys: `coalesce` keeps the planner from the index of
-- what is claimable, which may have thousands. What is locked is changed at its place, and returned in that order: which
-- ones are taken goes by age.
CREATE OR REPLACE FUNCTION mailbox_claim(
    in_kind text, in_keys text[], in_limit int, in_worker text, in_lease_s float8, in_events_max int
) RETURNS TABLE (
    mailbox_key text, mailbox_id bigint, fence bigint, processed bigint, appended bigint, failures int,
    seq bigint, type text, payload jsonb, created_at timestamptz
) LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    due tid[];
    claims mailboxes[];
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    IF in_keys IS NULL THEN
        SELECT array_agg(d.row_at) INTO due FROM (
            SELECT ctid AS row_at FROM mailboxes
            WHERE kind = in_kind AND claimable_at <= statement_timestamp()
            ORDER BY claimable_at
            LIMIT in_limit
            FOR NO KEY UPDATE SKIP LOCKED) AS d;
    ELSE
        SELECT array_agg(d.row_at) INTO due FROM (
            SELECT ctid AS row_at FROM mailboxes
            WHERE kind = in_kind AND key = ANY(in_keys)
              AND coalesce(claimable_at, 'infinity') <= statement_timestamp()
            LIMIT in_limit
            FOR NO KEY UPDATE SKIP LOCKED) AS d;
    END IF;
    IF due IS NULL THEN
        RETURN;
    END IF;

    WITH claimed AS (
        UPDATE mailboxes AS m
        SET processing_status = 'processing', fence = random(1, 9223372036854775807), locked_by = in_worker,
            processing_started_at = clock_timestamp(),
            claimable_at = clock_timestamp() + make_interval(secs => in_lease_s),
            failures = m.failures + (m.processing_status = 'processing')::int,
            last_error = CASE WHEN m.processing_status = 'processing' THEN 'its worker was lost: ' || m.locked_by
                              ELSE m.last_error END
        WHERE m.ctid = ANY(due)
        RETURNING m AS mailbox
    )
    SELECT array_agg(mailbox) INTO claims FROM claimed;

    RETURN QUERY
    SELECT c.key, c.id, c.fence, c.processed, c.appended, c.failures, e.seq, e.type, e.payload, e.created_at
    FROM unnest(claims) AS c
    LEFT JOIN LATERAL (
        SELECT p.seq, p.type, p.payload, p.created_at FROM mailbox_events AS p
        WHERE p.mailbox_id = c.id AND p.seq > c.processed AND p.seq <= c.appended AND p.processed_at IS NULL
        ORDER BY p.seq
        LIMIT in_events_max) AS e ON true;
END $$;

-- Complete mailboxes up to the event that was handled, guarded by the fence: rows not returned lost their lease. The
-- counter decides in this very UPDATE whether more has come: a look at the events instead would miss one whose append
-- commits a moment later. Last in the handler's transaction, which may not be left open beside these locks.
CREATE FUNCTION mailbox_complete(
    in_kind text, in_keys text[], in_fences bigint[], in_handled bigint[], lock_timeout_ms text, idle_timeout_ms text
) RETURNS TABLE (key text, processing_status text, took interval) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('lock_timeout', lock_timeout_ms, true),
            set_config('idle_in_transaction_session_timeout', idle_timeout_ms, true);
    RETURN QUERY
    WITH ours AS (
        SELECT m.kind, m.key, m.id, m.fence, m.processed, c.handled
        FROM mailboxes AS m
        JOIN unnest(in_keys, in_fences, in_handled) AS c (key, fence, handled) ON c.key = m.key AND c.fence = m.fence
        WHERE m.kind = in_kind AND m.key = ANY(in_keys) AND m.processing_status = 'processing'
        ORDER BY m.key
        FOR NO KEY UPDATE OF m
    ), completed AS (
        UPDATE mailboxes AS m
        SET processing_status = CASE WHEN m.appended = ours.handled THEN 'idle' ELSE 'queued' END,
            claimable_at = CASE WHEN m.appended = ours.handled THEN NULL ELSE clock_timestamp() END,
            processed = ours.handled, failures = 0, last_error = NULL, locked_by = NULL,
            last_processed_at = clock_timestamp()
        FROM ours
        WHERE m.kind = ours.kind AND m.key = ours.key AND m.fence = ours.fence
        RETURNING m.key, m.processing_status, m.processing_started_at
    ), marked AS (
        UPDATE mailbox_events AS e
        SET processed_at = clock_timestamp()
        -- By address, which leaves the planner no choice.
        WHERE e.ctid = ANY(ARRAY(
            SELECT p.ctid
            FROM ours
            CROSS JOIN LATERAL (
                SELECT p.ctid FROM mailbox_events AS p
                WHERE p.mailbox_id = ours.id AND p.seq > ours.processed AND p.seq <= ours.handled
                  AND p.processed_at IS NULL
                ORDER BY p.seq) AS p))
    )
    SELECT key, processing_status, clock_timestamp() - processing_started_at FROM completed;
END $$;
