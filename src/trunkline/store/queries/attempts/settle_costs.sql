-- What calls cost takes the place of what was set aside for them, in the days in which they were begun. Days in one order,
-- after the attempts, as the intent takes them.
-- $1-$4 attempts, their costs, and the merchants and days that pay
WITH cost AS (
    SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::date[]) AS c (id, micros, merchant_id, day)
), noted AS (
    UPDATE attempts AS a SET cost_micros = c.micros FROM cost AS c
    WHERE a.id = c.id AND a.cost_micros IS NULL
    RETURNING a.id, c.micros - a.reserved_micros AS more
)
INSERT INTO merchant_days AS d (merchant_id, day, attempts, spent_micros)
SELECT c.merchant_id, c.day, 0, sum(n.more)
FROM noted AS n JOIN cost AS c ON c.id = n.id
GROUP BY 1, 2 ORDER BY 1, 2
ON CONFLICT (merchant_id, day) DO UPDATE SET spent_micros = d.spent_micros + EXCLUDED.spent_micros
