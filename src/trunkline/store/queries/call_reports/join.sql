-- An agent asks about its call or tells of it: so it took the call. Only the first time is written.
UPDATE allocations SET joined_at = clock_timestamp() WHERE id = $1 AND joined_at IS NULL
