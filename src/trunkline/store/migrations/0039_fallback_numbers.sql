-- Without Valkey, free channels of a pool are looked for a few numbers at a time, from where the last look ended. A pool may
-- have ten thousand numbers: an index of the pool alone would sort all of them for each look.
CREATE INDEX numbers_by_pool_in_order ON numbers (pool_id, id);
DROP INDEX numbers_by_pool;
