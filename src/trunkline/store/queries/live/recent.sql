-- What was dialled in the last $3 seconds: by slices of $4 seconds, and by how it ended. Ids are UUIDv7, so the primary key
-- finds the newest; at most $5 rows are read, and `since` says how far back they reach. Half a minute more than the
-- window is read, for dialers whose clocks run behind. The moment is asked for once, in a query of its own: asked for each
-- row, it could not be looked up in an index. A call that was answered and had no agent ended so, whatever the carrier says;
-- `busy` is an engaged line. Endings are counted apart from slices: lateness is sorted once, not twice.
WITH newest AS MATERIALIZED (
    SELECT reseller_id, merchant_id, send_at, state, CASE WHEN agent = 'none' THEN 'no_agent' ELSE end_reason END AS end_reason,
           extract(epoch FROM send_at - lead_due_at)::float8 AS late_s
    FROM attempts
    WHERE id >= (SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp() - make_interval(secs => $3 + 30)) * 1000)::bigint),
                              12, '0') || '70008000000000000000')::uuid)
    ORDER BY id DESC
    LIMIT $5
), reach AS MATERIALIZED (
    SELECT CASE WHEN count(*) < $5 THEN clock_timestamp() - make_interval(secs => $3) ELSE min(send_at) END AS since
    FROM newest
), seen AS MATERIALIZED (
    SELECT date_bin(make_interval(secs => $4), send_at, '2000-01-01Z') AS slice, state, end_reason, late_s
    FROM newest
    WHERE send_at >= (SELECT since FROM reach)
      AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
)
SELECT slice, NULL::text AS ending, true AS is_slice, count(*)::int AS calls,
       percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP (ORDER BY late_s) AS lateness_s, (SELECT since FROM reach) AS since
FROM seen
GROUP BY slice
UNION ALL
SELECT NULL, coalesce(CASE WHEN state = 'ended' THEN end_reason END, state), false, count(*)::int, NULL, (SELECT since FROM reach)
FROM seen
WHERE state IN ('ended', 'rejected', 'absent', 'unknown')
GROUP BY 2
ORDER BY 1, 2
