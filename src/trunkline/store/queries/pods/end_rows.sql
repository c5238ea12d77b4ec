-- Allocations that an operator ended. In the order of ids. $1 ids  $2 why
WITH over AS MATERIALIZED (
    SELECT id FROM allocations WHERE id = ANY($1::uuid[]) AND ended_at IS NULL ORDER BY id FOR NO KEY UPDATE
)
UPDATE allocations AS a SET ended_at = clock_timestamp(), why = $2 FROM over AS o WHERE a.id = o.id RETURNING a.id
