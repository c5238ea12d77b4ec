-- Mailboxes of a kind that wait or are in hand, in the order of their keys, after $3. Where few are not idle they are all
-- read from the index of those and sorted: in the order of keys, a million idle ones would come before the first that
-- waits. Where many are, that order soon meets a page of them.
WITH few AS MATERIALIZED (
    SELECT count(*) <= 1000 AS is_so
    FROM (SELECT FROM mailboxes WHERE kind = $1 AND claimable_at IS NOT NULL LIMIT 1001) AS counted
), near AS MATERIALIZED (
    SELECT * FROM mailboxes
    WHERE (SELECT is_so FROM few) AND kind = $1 AND claimable_at IS NOT NULL AND processing_status = $2
    ORDER BY claimable_at
), found AS (
    SELECT * FROM near WHERE key > $3
    UNION ALL
    (SELECT * FROM mailboxes
     WHERE NOT (SELECT is_so FROM few) AND kind = $1 AND processing_status = $2 AND key > $3
     ORDER BY key LIMIT $4)
)
SELECT kind, key, processing_status, appended, processed, failures, last_error, locked_by, claimable_at,
       processing_started_at, last_processed_at, created_at
FROM found
ORDER BY key
LIMIT $4
