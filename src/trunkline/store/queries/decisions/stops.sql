-- What is stopped of a lead: the platform, its reseller, its merchant, its campaign.
SELECT c.scope, c.set_by, c.reason, c.ends_at
FROM controls AS c
WHERE (c.ends_at IS NULL OR c.ends_at > clock_timestamp())
  AND (c.scope IN ('kill_switch', 'promoter') OR (c.scope = 'reseller' AND c.subject = $1)
       OR (c.scope = 'merchant' AND c.subject = $2) OR (c.scope = 'campaign' AND c.subject = $3))
ORDER BY c.scope
