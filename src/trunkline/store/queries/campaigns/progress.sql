-- How far a campaign is, in one pass over its leads: by status and outcome, with their attempts, those that ended within
-- the last ten minutes, and when the next one is due.
SELECT status, outcome, count(*) AS leads, sum(attempt_count) AS attempts,
       count(*) FILTER (WHERE finished_at > clock_timestamp() - interval '10 minutes') AS lately,
       min(due_at) AS next_due_at, min(finished_at) AS first_finished_at, max(finished_at) AS last_finished_at,
       count(*) FILTER (WHERE attempt_count > 0) AS tried
FROM leads
WHERE campaign_id = $1 AND merchant_id = $2
GROUP BY status, outcome
