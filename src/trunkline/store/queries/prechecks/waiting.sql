-- Leads that are to be asked about, as they are now.
SELECT l.id, l.version, l.request_id, l.reseller_id, l.merchant_id, l.campaign_id, l.phone, l.timezone, l.payload,
       l.attempt_count, l.due_at,
       CASE WHEN p.passed_until > clock_timestamp() + make_interval(secs => $2) THEN p.checks_hash END AS passed_checks
FROM leads AS l
LEFT JOIN prechecks AS p ON p.lead_id = l.id
WHERE l.id = ANY($1::uuid[]) AND l.status = 'BACKLOG'
