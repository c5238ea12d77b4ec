-- name: is_spent
-- Was the link used, or the session ended?
SELECT EXISTS (SELECT FROM console_spent WHERE id = $1)

-- name: spend
-- Mark it as used; no row if it was. Expired ones are deleted, a few at a time.
WITH forgotten AS (
    DELETE FROM console_spent WHERE id IN (
        SELECT id FROM console_spent WHERE until < clock_timestamp() ORDER BY until LIMIT 100 FOR UPDATE SKIP LOCKED)
)
INSERT INTO console_spent (id, until) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING id
