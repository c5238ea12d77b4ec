-- Change what was named. The two that can be emptied carry a flag, because NULL is a value of theirs.
UPDATE merchants SET
    name            = coalesce($2, name),
    weight          = coalesce($3, weight),
    default_region  = CASE WHEN $4 THEN $5 ELSE default_region END,
    default_pool_id = CASE WHEN $6 THEN $7 ELSE default_pool_id END
WHERE id = $1
RETURNING *
