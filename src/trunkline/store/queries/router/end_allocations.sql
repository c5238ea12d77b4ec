-- Notes that allocations are over, also those whose beginning has not been noted yet.
INSERT INTO router_allocations AS a (allocation_id, call_sid, pod, ended_at)
SELECT allocation_id, call_sid, pod, clock_timestamp()
FROM unnest($1::text[], $2::text[], $3::text[]) AS n (allocation_id, call_sid, pod)
ORDER BY allocation_id
ON CONFLICT (allocation_id) DO UPDATE
SET ended_at = coalesce(a.ended_at, excluded.ended_at)
