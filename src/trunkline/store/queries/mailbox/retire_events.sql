-- Remove events that were processed long ago, some at a time, about in the order of their arrival. What is not processed
-- stays, however old. The age is asked of `created_at`, which has an index: an event that waited for long is removed
-- only when it has been processed for as long. The scan goes on from $3; what lies out of order waits for the next run.
WITH old AS (
    SELECT ctid, created_at FROM mailbox_events
    WHERE created_at < statement_timestamp() - make_interval(secs => $1) AND created_at >= $3
      AND processed_at < statement_timestamp() - make_interval(secs => $1)
    LIMIT $2
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM mailbox_events WHERE ctid = ANY(ARRAY(SELECT old.ctid FROM old))
)
SELECT count(*) AS removed, min(created_at) AS upto FROM old
