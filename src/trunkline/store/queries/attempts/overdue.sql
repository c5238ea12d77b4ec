-- Attempts whose request should long have been answered. Their dialer died or lost the reply: nobody knows whether the
-- carrier dialled, so they become `in_doubt` and keep their channel.
UPDATE attempts
SET state = 'in_doubt', end_reason = 'no_reply'
WHERE id IN (
    SELECT id FROM attempts
    WHERE state = 'dialing' AND send_at < clock_timestamp() - make_interval(secs => $1)
    ORDER BY id LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED)
RETURNING id
