-- Since when this server runs, in seconds. Allocations that were not kept commit without waiting for the disk: what was
-- given in the last moment before a crash may be missing.
SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::float8
