-- Leads of one merchant, newest first: a page of each status, of which the newest are taken. Lists of
-- one (`= ANY`) keep the whole key in the order: a plain `=` would leave `id` alone, and the planner would take the primary
-- key and wade through leads that nobody asked for.
SELECT l.*
FROM unnest($6::text[]) AS wanted (status)
CROSS JOIN LATERAL (
    SELECT * FROM leads
    WHERE merchant_id = ANY(ARRAY[$3]) AND status = ANY(ARRAY[wanted.status]) AND id < $7::uuid
      AND ($1::text IS NULL OR reseller_id = $1)
      AND ($2::text IS NULL OR merchant_id = $2)
      AND ($4::uuid IS NULL OR campaign_id = $4)
      AND ($5::text IS NULL OR phone = $5)
    ORDER BY merchant_id DESC, status DESC, id DESC
    LIMIT $8) AS l
ORDER BY l.id DESC
LIMIT $8
