-- Give an event that was set aside another turn, as if it came now: under its mailbox's lock it gets the next number.
-- With its old number it would lie behind what is already processed.
WITH again AS (
    UPDATE mailbox_events AS e
    SET seq = m.appended + 1, processed_at = NULL, error = NULL
    FROM mailboxes AS m
    WHERE m.kind = $1 AND m.key = $2 AND e.mailbox_id = m.id AND e.seq = $3 AND e.error IS NOT NULL
    RETURNING e.seq
)
UPDATE mailboxes AS m
SET appended = again.seq,
    processing_status = CASE WHEN m.processing_status = 'idle' THEN 'queued' ELSE m.processing_status END,
    claimable_at = CASE WHEN m.processing_status = 'idle' THEN clock_timestamp() ELSE m.claimable_at END
FROM again
WHERE m.kind = $1 AND m.key = $2
RETURNING again.seq
