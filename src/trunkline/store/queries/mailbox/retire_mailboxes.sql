-- Remove mailboxes that have been idle for long and have no events left. One that is appended to meanwhile is locked,
-- or no longer idle when its lock is had; an append that comes a moment later makes it again.
WITH old AS (
    SELECT m.kind, m.key FROM mailboxes AS m
    WHERE m.processing_status = 'idle'
      AND COALESCE(m.last_processed_at, m.created_at) < statement_timestamp() - make_interval(secs => $1)
      AND NOT EXISTS (SELECT FROM mailbox_events AS e WHERE e.mailbox_id = m.id)
    LIMIT $2
    FOR UPDATE OF m SKIP LOCKED
)
DELETE FROM mailboxes AS m USING old WHERE m.kind = old.kind AND m.key = old.key AND m.processing_status = 'idle'
