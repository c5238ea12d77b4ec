-- Whose call this is, and whether its agents are elsewhere. Asked when it is answered and no agent was kept for it. Where that
-- was by choice, also whom it calls from where, for whom: what somebody is told who finds no agent names the caller.
SELECT a.merchant_id, coalesce('elsewhere' IN (m.agents, p.agents), false) AS are_agents_elsewhere,
       a.overdial_group IS NOT NULL AS is_overdialled, a.reseller_id, a.campaign_id,
       coalesce(m.name, '') AS merchant_name, a.to_phone, a.from_phone
FROM attempts AS a
LEFT JOIN merchants AS m ON m.id = a.merchant_id
LEFT JOIN leads AS l ON l.id = a.lead_id
LEFT JOIN pools AS p ON p.id = l.pool_id
WHERE a.id = $1
