-- Which of these allocations are live and have a pod.
SELECT a.id, a.call, a.pod, a.slot, a.incarnation, a.merchant_id, a.source_pool, a.turn,
       extract(epoch FROM coalesce(a.begun_at, a.asked_at))::bigint AS at_s
FROM allocations AS a
WHERE a.id = ANY($1::uuid[]) AND a.ended_at IS NULL AND a.pod IS NOT NULL
