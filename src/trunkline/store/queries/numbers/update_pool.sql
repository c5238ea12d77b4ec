-- Change what was named. Its owner never changes: leads of other tenants would lose it, or gain it.
UPDATE pools
SET name             = coalesce($2, name),
    overflow_pool_id = CASE WHEN $3 THEN $4 ELSE overflow_pool_id END,
    overflow_after_s = CASE WHEN $3 THEN $5 ELSE overflow_after_s END,
    region_affinity  = coalesce($6, region_affinity),
    agents           = coalesce($7, agents)
WHERE id = $1
RETURNING *
