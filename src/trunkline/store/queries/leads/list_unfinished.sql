-- Leads of the whole platform that are not finished, newest first: a page of each status, in the order of the whole key
-- (see `list_by_merchant`).
SELECT l.*
FROM unnest($6::text[]) AS wanted (status)
CROSS JOIN LATERAL (
    SELECT * FROM leads
    WHERE status <> 'FINISHED'
      AND status = ANY(ARRAY[wanted.status]) AND id < $7::uuid
      AND ($1::text IS NULL OR reseller_id = $1)
      AND ($2::text IS NULL OR merchant_id = $2)
      AND ($3::text IS NULL OR merchant_id = $3)
      AND ($4::uuid IS NULL OR campaign_id = $4)
      AND ($5::text IS NULL OR phone = $5)
    ORDER BY status DESC, id DESC
    LIMIT $8) AS l
ORDER BY l.id DESC
LIMIT $8
