-- A person whom a campaign has yet to call, to ask when its windows are open.
SELECT phone, timezone FROM leads
WHERE campaign_id = $1 AND merchant_id = $2 AND status = 'BACKLOG'
ORDER BY id
LIMIT 1
