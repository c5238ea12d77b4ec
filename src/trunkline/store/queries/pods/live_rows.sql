-- Live allocations that have a pod; of all pods, or those named ($1, NULL for all).
SELECT a.id, a.call, a.pod, a.slot, a.incarnation, a.merchant_id, a.source_pool, a.turn,
       extract(epoch FROM coalesce(a.begun_at, a.asked_at))::bigint AS at_s
FROM allocations AS a
WHERE a.ended_at IS NULL AND a.pod IS NOT NULL AND ($1::text[] IS NULL OR a.pod = ANY($1))
ORDER BY a.pod, a.slot
