-- Which calls have pods, for a rebuild. Older than the lease they cannot be.
SELECT allocation_id, call_sid, pod, source_pool, merchant_id,
       extract(epoch FROM allocated_at)::bigint AS allocated_at_s
FROM router_allocations
WHERE ended_at IS NULL AND allocated_at > clock_timestamp() - make_interval(secs => $1)
ORDER BY pod, allocated_at
