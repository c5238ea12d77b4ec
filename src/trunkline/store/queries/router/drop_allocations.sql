-- Allocations that lost their pod while their calls may live on. No row stays: after a loss of memory an end is a tombstone, and
-- a call that lives would be hung up instead of getting another pod.
DELETE FROM router_allocations WHERE allocation_id = ANY($1::text[])
