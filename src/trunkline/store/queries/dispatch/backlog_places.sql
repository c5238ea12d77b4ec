-- Which of these leads still want to be called, and when.
SELECT id, version, pool_id, due_at FROM leads WHERE id = ANY($1::uuid[]) AND status = 'BACKLOG'
