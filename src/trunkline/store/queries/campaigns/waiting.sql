-- Some leads of a campaign that have not ended and whose end nobody has asked for, in the order in which leads are locked.
SELECT id FROM (
    (SELECT id FROM leads WHERE campaign_id = $1 AND merchant_id = $2 AND status = 'BACKLOG' ORDER BY id LIMIT $3)
    UNION ALL
    (SELECT id FROM leads
     WHERE campaign_id = $1 AND merchant_id = $2 AND status = 'PROCESSING' AND cancel_requested_at IS NULL
     ORDER BY id LIMIT $3)
) AS found
ORDER BY id
LIMIT $3
