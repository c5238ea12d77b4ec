-- Some leads of a campaign that have not ended and whose end nobody has asked for, in the order in which leads are locked.
-- Each part in the order of the whole key (see `leads/list_by_merchant`): by the primary key, everybody who has finished
-- would be read first.
SELECT id FROM (
    (SELECT id FROM leads
     WHERE campaign_id = ANY(ARRAY[$1::uuid]) AND merchant_id = $2 AND status = ANY(ARRAY['BACKLOG'])
     ORDER BY campaign_id, status, id LIMIT $3)
    UNION ALL
    (SELECT id FROM leads
     WHERE campaign_id = ANY(ARRAY[$1::uuid]) AND merchant_id = $2 AND status = ANY(ARRAY['PROCESSING'])
       AND cancel_requested_at IS NULL
     ORDER BY campaign_id, status, id LIMIT $3)
) AS found
ORDER BY id
LIMIT $3
