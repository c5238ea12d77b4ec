-- Leads whose window closed before their turn came, if they are still the same. Somebody else's are skipped.
SELECT l.id, l.phone, l.timezone, l.merchant_id, l.reseller_id, l.campaign_id, l.due_at, clock_timestamp() AS now
FROM unnest($1::uuid[], $2::int[]) AS c (lead_id, version)
JOIN leads AS l ON l.id = c.lead_id
WHERE l.status = 'BACKLOG' AND l.version = c.version
ORDER BY l.id
FOR NO KEY UPDATE OF l SKIP LOCKED
