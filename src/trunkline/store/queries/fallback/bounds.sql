-- First in the transaction of a walk: a time-out, and how the next statements are planned. It ends with the transaction, so
-- a pooler's next client does not inherit it. Plans are made once for a connection, often while the tables are small: so
-- the planner is left one way, row by row in the order of an index, and that stays right however the tables grow.
-- $1 the time-out in ms
SELECT set_config('statement_timeout', $1::text, true), set_config('plan_cache_mode', 'force_generic_plan', true),
       set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
       set_config('enable_sort', 'off', true), set_config('jit', 'off', true)
