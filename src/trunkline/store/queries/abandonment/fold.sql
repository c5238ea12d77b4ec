-- Fold what is counted: single settlements into minutes, minutes older than two hours into hours, hours older than two days
-- into days. Settlements are also added up for their reseller (no merchant): what the overview is read from, however many
-- campaigns call. Nothing is done while fewer than $1 rows wait. Each row is taken by one and put back in the same statement:
-- whoever reads meanwhile sees the sum once.
WITH ripe AS MATERIALIZED (
    SELECT ctid FROM call_counts
    WHERE grain <> 'day'
      AND (grain = 'call' OR (grain = 'minute' AND at < clock_timestamp() - interval '2 hours')
           OR at < clock_timestamp() - interval '2 days')
    ORDER BY at LIMIT $2
), taken AS (
    DELETE FROM call_counts
    WHERE ctid = ANY (ARRAY(
        SELECT c.ctid FROM call_counts AS c
        WHERE (SELECT count(*) FROM ripe) >= $1 AND c.ctid = ANY (ARRAY(SELECT ctid FROM ripe))
        FOR UPDATE SKIP LOCKED))
    RETURNING *, CASE WHEN at < clock_timestamp() - interval '2 days' THEN 'day'
                      WHEN at < clock_timestamp() - interval '2 hours' THEN 'hour' ELSE 'minute' END AS coarser
), due AS (
    SELECT * FROM taken
    UNION ALL
    SELECT reseller_id, '', '00000000-0000-0000-0000-000000000000', at, grain, ended, answered, by_person, abandoned, coarser
    FROM taken WHERE grain = 'call'
), folded AS (
    INSERT INTO call_counts (reseller_id, merchant_id, campaign_id, at, grain, ended, answered, by_person, abandoned)
    SELECT reseller_id, merchant_id, campaign_id, date_trunc(coarser, at, 'UTC'), coarser, sum(ended), sum(answered),
           sum(by_person), sum(abandoned)
    FROM due
    GROUP BY 1, 2, 3, 4, 5
)
SELECT count(*) FROM taken
