-- Mark the events of a completed batch.
UPDATE mailbox_events AS e
SET processed_at = clock_timestamp()
FROM unnest($2::text[], $3::bigint[]) AS c (key, appended)
WHERE e.kind = $1 AND e.key = c.key AND e.seq <= c.appended AND e.processed_at IS NULL
