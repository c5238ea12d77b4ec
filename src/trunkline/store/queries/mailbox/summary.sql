-- The backlog, the stuck and the dead in numbers, by kind, of all kinds or of these. Read from the partial indexes: idle mailboxes cost nothing.
SELECT kind, processing_status AS status, count(*) AS mailboxes, sum(appended - processed)::bigint AS events,
       extract(epoch FROM clock_timestamp() - min(COALESCE(last_processed_at, created_at)))::float8 AS oldest_s
FROM mailboxes
WHERE (claimable_at IS NOT NULL OR processing_status = 'dead') AND ($1::text[] IS NULL OR kind = ANY($1))
GROUP BY kind, processing_status
ORDER BY kind, processing_status
