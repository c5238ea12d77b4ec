-- Ends what is open of these calls at these pods, where the allocation's own id was lost.
WITH over AS (
    SELECT a.allocation_id
    FROM router_allocations a
    JOIN unnest($1::text[], $2::text[]) AS n (call_sid, pod) USING (call_sid, pod)
    WHERE a.ended_at IS NULL
    ORDER BY a.allocation_id
    FOR UPDATE OF a
)
UPDATE router_allocations a SET ended_at = clock_timestamp() FROM over WHERE a.allocation_id = over.allocation_id
