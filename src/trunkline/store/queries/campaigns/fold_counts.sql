-- Fold what is kept of the campaigns that changed: a row for each status and outcome, and for each of the last minutes,
-- which the pace is read from. Nothing is done while fewer than $1 rows wait. Each row is taken by one and put back in
-- the same statement: whoever reads meanwhile sees the sum once.
WITH fresh AS MATERIALIZED (
    SELECT campaign_id, merchant_id FROM campaign_counts WHERE NOT is_folded ORDER BY at LIMIT $2
), taken AS (
    DELETE FROM campaign_counts
    WHERE ctid = ANY (ARRAY(
        SELECT c.ctid FROM campaign_counts AS c
        WHERE (SELECT count(*) FROM fresh) >= $1
          AND (c.campaign_id, c.merchant_id) IN (SELECT campaign_id, merchant_id FROM fresh)
        FOR UPDATE SKIP LOCKED))
    RETURNING *
), folded AS (
    INSERT INTO campaign_counts
    SELECT campaign_id, merchant_id,
           CASE WHEN at > clock_timestamp() - interval '11 minutes' THEN date_trunc('minute', at) ELSE '-infinity' END,
           status, outcome, sum(leads), sum(attempts), sum(tried), min(first_finished_at), max(last_finished_at), true
    FROM taken
    GROUP BY 1, 2, 3, 4, 5
    HAVING sum(leads) <> 0 OR sum(attempts) <> 0 OR sum(tried) <> 0
)
SELECT count(*) FROM taken
