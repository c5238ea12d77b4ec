-- Notes that calls have pods. The end may have been noted first: then it stays.
INSERT INTO router_allocations AS a (allocation_id, call_sid, pod, source_pool, merchant_id, allocated_at)
SELECT allocation_id, call_sid, pod, source_pool, merchant_id, to_timestamp(allocated_at_s)
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::float8[])
     AS n (allocation_id, call_sid, pod, source_pool, merchant_id, allocated_at_s)
ORDER BY allocation_id
ON CONFLICT (allocation_id) DO UPDATE
SET call_sid = excluded.call_sid,
    pod = excluded.pod,
    source_pool = excluded.source_pool,
    merchant_id = excluded.merchant_id,
    allocated_at = excluded.allocated_at
