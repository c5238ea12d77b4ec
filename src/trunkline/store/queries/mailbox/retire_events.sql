-- Remove events that were processed long ago, oldest first, some at a time. What is not processed stays, however old;
-- the scan goes on behind it from $3. The age is asked of `created_at`, which has an index: an event that waited for
-- long is removed only when it has been processed for as long.
WITH old AS (
    SELECT ctid, created_at FROM mailbox_events
    WHERE created_at < statement_timestamp() - make_interval(secs => $1) AND created_at > $3
      AND processed_at < statement_timestamp() - make_interval(secs => $1)
    ORDER BY created_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM mailbox_events WHERE ctid = ANY(ARRAY(SELECT old.ctid FROM old))
)
SELECT count(*) AS removed, max(created_at) AS upto FROM old
