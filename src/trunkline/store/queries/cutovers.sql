-- name: begin
-- From now on these merchants' leads are called here, except those that were due before.
INSERT INTO cutovers (merchant_id, since)
SELECT merchant_id, clock_timestamp() FROM unnest($1::text[]) AS m (merchant_id) ORDER BY merchant_id
ON CONFLICT (merchant_id) DO UPDATE SET since = excluded.since

-- name: drop
-- All leads of these merchants are called here, whenever they were due.
DELETE FROM cutovers WHERE merchant_id = ANY($1::text[])

-- name: left_out
-- Merchants that a hosted flag service leaves out, as last recorded, with their resellers.
SELECT m.reseller_id, m.id FROM cutovers AS c JOIN merchants AS m ON m.id = c.merchant_id WHERE c.since IS NULL

-- name: merchants
-- Every merchant with its reseller: a flag is evaluated for each.
SELECT reseller_id, id FROM merchants

-- name: observe
-- The present decisions of a hosted flag service ($1 off, $2 on). Off is recorded, so that on is recognised as a change; the
-- first process that sees it makes it the cutover. Without a change nothing is written.
WITH off AS (
    INSERT INTO cutovers (merchant_id, since)
    SELECT merchant_id, NULL FROM unnest($1::text[]) AS m (merchant_id) ORDER BY merchant_id
    ON CONFLICT (merchant_id) DO UPDATE SET since = NULL WHERE cutovers.since IS NOT NULL
)
UPDATE cutovers SET since = clock_timestamp() WHERE merchant_id = ANY($2::text[]) AND since IS NULL

-- name: overdue
-- How many leads of these merchants wait past their due time.
SELECT merchant_id, count(*) AS leads FROM leads
WHERE merchant_id = ANY($1::text[]) AND status = 'BACKLOG' AND due_at <= clock_timestamp()
GROUP BY merchant_id
ORDER BY leads DESC, merchant_id
