-- How many dead rows the statistics believe the outbox to have.
SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'job_outbox'::regclass
