-- Leads of the whole platform that are finished, newest first: a page of each reseller, of which the newest are taken (see
-- `list_by_merchant`). The primary key would wade through everybody who waits. Of the other filters none is given here:
-- each has a list of its own.
SELECT l.*
FROM resellers AS r
CROSS JOIN LATERAL (
    SELECT * FROM leads
    WHERE reseller_id = ANY(ARRAY[r.id]) AND status = ANY(ARRAY['FINISHED']) AND id < $7::uuid
    ORDER BY reseller_id DESC, status DESC, id DESC
    LIMIT $8) AS l
WHERE $1::text IS NULL AND $2::text IS NULL AND $3::text IS NULL AND $4::uuid IS NULL AND $5::text IS NULL
  AND 'FINISHED' = ANY($6::text[])
ORDER BY l.id DESC
LIMIT $8
