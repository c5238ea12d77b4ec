-- Change what was named. Those that can be emptied carry a flag, because NULL is a value of theirs.
UPDATE merchants SET
    name            = coalesce($2, name),
    weight          = coalesce($3, weight),
    default_region  = CASE WHEN $4 THEN $5 ELSE default_region END,
    default_pool_id = CASE WHEN $6 THEN $7 ELSE default_pool_id END,
    max_concurrent  = CASE WHEN $8 THEN $9 ELSE max_concurrent END,
    agents          = coalesce($10, agents)
WHERE id = $1
RETURNING *
