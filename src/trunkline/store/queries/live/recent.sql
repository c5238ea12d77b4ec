-- What was dialled in the last $3 seconds: by slices of $4 seconds, and by how it ended. Ids are UUIDv7, so the primary key
-- finds the newest; at most $5 rows are read, and `since` says how far back they reach. Half a minute more than the
-- window is read, for dialers whose clocks run behind. The moment is asked for once, in a query of its own: asked for each
-- row, it could not be looked up in an index.
WITH newest AS MATERIALIZED (
    SELECT reseller_id, merchant_id, send_at, lead_due_at, state, end_reason
    FROM attempts
    WHERE id >= (SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp() - make_interval(secs => $3 + 30)) * 1000)::bigint),
                              12, '0') || '70008000000000000000')::uuid)
    ORDER BY id DESC
    LIMIT $5
), reach AS (
    SELECT CASE WHEN count(*) < $5 THEN clock_timestamp() - make_interval(secs => $3) ELSE min(send_at) END AS since
    FROM newest
)
SELECT date_bin(make_interval(secs => $4), send_at, '2000-01-01Z') AS slice,
       CASE WHEN state IN ('ended', 'rejected', 'absent', 'unknown')
            THEN coalesce(CASE WHEN state = 'ended' THEN end_reason END, state) END AS ending,
       grouping(date_bin(make_interval(secs => $4), send_at, '2000-01-01Z')) = 0 AS is_slice,
       count(*)::int AS calls,
       percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP (
           ORDER BY extract(epoch FROM send_at - lead_due_at)::float8) AS lateness_s,
       (SELECT since FROM reach) AS since
FROM newest
WHERE send_at >= (SELECT since FROM reach)
  AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
GROUP BY GROUPING SETS ((1), (2))
ORDER BY 1, 2
