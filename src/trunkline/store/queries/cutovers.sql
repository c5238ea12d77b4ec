-- name: begin
-- From now on these merchants' leads are called here, and none that was due before.
INSERT INTO cutovers (merchant_id, since)
SELECT merchant_id, clock_timestamp() FROM unnest($1::text[]) AS m (merchant_id) ORDER BY merchant_id
ON CONFLICT (merchant_id) DO UPDATE SET since = excluded.since

-- name: drop
-- All leads of these merchants are called here, whenever they were due.
DELETE FROM cutovers WHERE merchant_id = ANY($1::text[])

-- name: left_out
-- Merchants that a hosted flag service has left out, as it was last written down, with their resellers.
SELECT m.reseller_id, m.id FROM cutovers AS c JOIN merchants AS m ON m.id = c.merchant_id WHERE c.since IS NULL

-- name: merchants
-- Every merchant with its reseller: for each of them a flag is on or off.
SELECT reseller_id, id FROM merchants

-- name: observe
-- What a hosted flag service says of merchants now ($1 off, $2 on). Off is written down, so that on is recognised as a change;
-- whoever sees that first makes it the cutover. Without news nothing is written.
WITH off AS (
    INSERT INTO cutovers (merchant_id, since)
    SELECT merchant_id, NULL FROM unnest($1::text[]) AS m (merchant_id) ORDER BY merchant_id
    ON CONFLICT (merchant_id) DO UPDATE SET since = NULL WHERE cutovers.since IS NOT NULL
)
UPDATE cutovers SET since = clock_timestamp() WHERE merchant_id = ANY($2::text[]) AND since IS NULL

-- name: overdue
-- How many leads of these merchants wait although their time has come.
SELECT merchant_id, count(*) AS leads FROM leads
WHERE merchant_id = ANY($1::text[]) AND status = 'BACKLOG' AND due_at <= clock_timestamp()
GROUP BY merchant_id
ORDER BY leads DESC, merchant_id
