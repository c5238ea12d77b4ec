-- Complete mailboxes up to the event that was handled ($4), guarded by the fence: rows not returned lost their lease.
-- The counter decides in this very UPDATE whether more has come: a look at the events instead would miss one whose
-- append commits a moment later. Last in the handler's transaction, which may not be left open beside these locks.
WITH patience AS MATERIALIZED (
    SELECT set_config('lock_timeout', $5::text, true),
           set_config('idle_in_transaction_session_timeout', $6::text, true) AS set
), ours AS (
    SELECT m.kind, m.key, m.id, m.fence, m.processed, c.handled
    FROM patience
    CROSS JOIN unnest($2::text[], $3::bigint[], $4::bigint[]) AS c (key, fence, handled)
    JOIN mailboxes AS m ON m.kind = $1 AND m.key = c.key
    WHERE m.processing_status = 'processing' AND m.fence = c.fence AND patience.set IS NOT NULL
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
    -- By address, which leaves the planner no choice: on a table it knows nothing of yet it would read all of it.
    WHERE e.ctid = ANY(ARRAY(
        SELECT p.ctid
        FROM ours
        CROSS JOIN LATERAL (
            SELECT p.ctid FROM mailbox_events AS p
            WHERE p.mailbox_id = ours.id AND p.seq > ours.processed AND p.seq <= ours.handled
              AND p.processed_at IS NULL
            ORDER BY p.seq) AS p))
)
SELECT key, processing_status, clock_timestamp() - processing_started_at AS took FROM completed
