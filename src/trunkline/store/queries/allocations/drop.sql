-- Slots that were kept for attempts which did not go in: in the same transaction, so nobody ever saw them.
DELETE FROM allocations WHERE id = ANY($1::uuid[])
