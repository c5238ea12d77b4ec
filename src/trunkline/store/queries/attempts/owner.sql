-- Whose call this is, and whether its agents are elsewhere. Asked when it is answered and no agent was kept for it.
SELECT a.merchant_id, coalesce('elsewhere' IN (m.agents, p.agents), false) AS are_agents_elsewhere
FROM attempts AS a
LEFT JOIN merchants AS m ON m.id = a.merchant_id
LEFT JOIN leads AS l ON l.id = a.lead_id
LEFT JOIN pools AS p ON p.id = l.pool_id
WHERE a.id = $1
