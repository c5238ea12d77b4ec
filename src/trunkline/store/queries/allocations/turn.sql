-- How a call stands that the request before could not move: read in a statement of its own, because one that waited for a
-- row does not see what it waited for.
SELECT call, turn, ended_at IS NOT NULL AS is_over, merchant_id FROM allocations WHERE id = $1
