-- The 99th percentile of lateness of what was sent in the last minute. Attempt ids are UUIDv7, so the primary key finds
-- them; it is given half a minute more than the moment itself, for dialers whose clocks run behind.
SELECT coalesce(percentile_cont(0.99) WITHIN GROUP (
           ORDER BY extract(epoch FROM send_at - lead_due_at)::float8), 0)
FROM attempts
WHERE id >= (SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp() - interval '90 seconds') * 1000)::bigint), 12, '0')
             || '70008000000000000000')::uuid)
  AND send_at > clock_timestamp() - interval '1 minute'
  AND lead_due_at IS NOT NULL AND state <> 'rejected'
