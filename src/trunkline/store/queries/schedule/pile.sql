-- How many leads wait, as the statistics of their index tell (counting a million takes a tenth of a second), and how many
-- are being called.
SELECT (SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = 'leads_backlog_by_due'::regclass) AS backlog,
       (SELECT count(*) FROM leads WHERE status = 'PROCESSING') AS processing
