-- Pods that name calls which no live row gives them.
SELECT p.name AS pod, said.call
FROM pods AS p CROSS JOIN LATERAL unnest(p.named) AS said (call)
WHERE NOT EXISTS (SELECT FROM allocations AS a WHERE a.call = said.call AND a.pod = p.name AND a.ended_at IS NULL)
ORDER BY p.name, said.call LIMIT 1000
