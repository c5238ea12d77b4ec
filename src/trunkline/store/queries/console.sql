-- name: is_spent
-- Was it used, or signed out?
SELECT EXISTS (SELECT FROM console_spent WHERE id = $1)

-- name: spend
-- Spend it; no row if somebody has. What would have ended by now is forgotten, a little at a time.
WITH forgotten AS (
    DELETE FROM console_spent WHERE id IN (
        SELECT id FROM console_spent WHERE until < clock_timestamp() ORDER BY until LIMIT 100 FOR UPDATE SKIP LOCKED)
)
INSERT INTO console_spent (id, until) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING id
