-- A person whom a campaign has yet to call, to ask when its windows are open. In the order of the whole key (see
-- `leads/list_by_merchant`): by the primary key, everybody who has finished would be read first.
SELECT phone, timezone FROM leads
WHERE campaign_id = ANY(ARRAY[$1::uuid]) AND merchant_id = $2 AND status = ANY(ARRAY['BACKLOG'])
ORDER BY campaign_id, status, id
LIMIT 1
