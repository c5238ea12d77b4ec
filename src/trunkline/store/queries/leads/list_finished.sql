-- Leads of the whole platform that are finished, newest first: a page of each reseller, of which the newest are taken. The
-- primary key would wade through everybody who waits.
SELECT l.*
FROM resellers AS r
CROSS JOIN LATERAL (
    SELECT * FROM leads
    WHERE reseller_id = ANY(ARRAY[r.id]) AND status = ANY(ARRAY['FINISHED']) AND id < $7::uuid
      AND 'FINISHED' = ANY($6::text[])
      AND ($1::text IS NULL OR reseller_id = $1)
      AND ($2::text IS NULL OR merchant_id = $2)
      AND ($3::text IS NULL OR merchant_id = $3)
      AND ($4::uuid IS NULL OR campaign_id = $4)
      AND ($5::text IS NULL OR phone = $5)
    ORDER BY reseller_id DESC, status DESC, id DESC
    LIMIT $8) AS l
ORDER BY l.id DESC
LIMIT $8
