-- A merchant's tier as somebody changed it in Valkey by hand; '' removes it. Only if it is still as the leader read it ('' for
-- none): a leader that was paused meanwhile must not undo what was changed since.
WITH removed AS (
    DELETE FROM router_merchants WHERE merchant_id = $1 AND config = $3 AND $2 = ''
),
changed AS (
    UPDATE router_merchants SET config = $2, changed_at = clock_timestamp()
    WHERE merchant_id = $1 AND config = $3 AND $2 <> ''
)
INSERT INTO router_merchants (merchant_id, config)
SELECT $1::text, $2::text WHERE $2 <> '' AND $3 = ''
ON CONFLICT (merchant_id) DO NOTHING
