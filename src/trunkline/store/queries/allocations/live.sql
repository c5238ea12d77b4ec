-- Which of these allocations are live.
SELECT id FROM allocations WHERE id = ANY($1::uuid[]) AND ended_at IS NULL
