-- Remove dead rows now. Autovacuum looks once a minute at best, and a busy minute is a hundred thousand rows.
VACUUM (SKIP_LOCKED, INDEX_CLEANUP ON, TRUNCATE OFF, PARALLEL 0) job_outbox
