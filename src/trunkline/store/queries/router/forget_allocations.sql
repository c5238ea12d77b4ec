-- Removes what ended long ago, and what can only have been left open by a note that was lost.
DELETE FROM router_allocations
WHERE allocation_id IN (
    SELECT allocation_id FROM router_allocations
    WHERE ended_at < clock_timestamp() - make_interval(secs => $1)
       OR (ended_at IS NULL AND allocated_at < clock_timestamp() - make_interval(secs => $1))
    LIMIT 5000
)
