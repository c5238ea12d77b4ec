-- The hard limits of merchants: how many calls each may have at once.
SELECT id, max_concurrent FROM merchants WHERE max_concurrent IS NOT NULL
