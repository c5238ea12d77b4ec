-- name: channels
-- Every number with its channels: how many there are, how many are held.
SELECT n.e164, n.max_channels, (SELECT count(*) FROM attempts AS a WHERE a.number_id = n.id AND a.holds_channel)::int AS held
FROM numbers AS n
ORDER BY n.e164

-- name: run_due
-- When each attempt of a run was due, to compare with the time at which the carrier got its request.
SELECT a.id, a.lead_due_at
FROM attempts AS a JOIN leads AS l ON l.id = a.lead_id
WHERE l.merchant_id = ANY($1) AND starts_with(l.request_id, $2)

-- name: run_progress
-- The progress of the leads of one run, and the lateness of their calls. A run is named by the prefix of its request ids.
SELECT count(*) FILTER (WHERE l.status = 'BACKLOG')::int AS backlog,
       count(*) FILTER (WHERE l.status = 'PROCESSING')::int AS processing,
       count(*) FILTER (WHERE l.status = 'FINISHED')::int AS finished,
       (SELECT jsonb_object_agg(outcome, n) FROM (
            SELECT outcome, count(*) AS n FROM leads
            WHERE merchant_id = ANY($1) AND starts_with(request_id, $2) AND outcome IS NOT NULL
            GROUP BY outcome) AS outcomes) AS outcomes,
       coalesce(sum(l.attempt_count), 0)::int AS placed
FROM leads AS l
WHERE l.merchant_id = ANY($1) AND starts_with(l.request_id, $2)
