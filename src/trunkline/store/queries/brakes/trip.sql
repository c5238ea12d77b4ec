-- Stop the dials of merchants of whose answered calls of the last $2 seconds more than $3, and more than the share $4, had no
-- agent. One that is tripped stays as it is: calls that rang when it tripped are no news.
UPDATE no_agent_brakes AS b
SET stops_until = clock_timestamp() + make_interval(secs => $5)
FROM unnest($1::text[]) AS m (merchant_id)
CROSS JOIN LATERAL (
    SELECT count(*) AS answered, count(*) FILTER (WHERE a.agent = 'none') AS without
    FROM no_agent_brakes AS own
    JOIN attempts AS a ON a.merchant_id = own.merchant_id
    WHERE own.merchant_id = m.merchant_id AND a.direction = 'outbound' AND a.state = 'ended' AND a.answered_at IS NOT NULL
      AND a.ended_at > greatest(own.counts_from, statement_timestamp() - make_interval(secs => $2))) AS lately
WHERE b.merchant_id = m.merchant_id AND b.stops_until IS NULL
  AND lately.without > $3::int AND lately.without > $4::float8 * lately.answered
RETURNING b.merchant_id, b.stops_until, lately.answered::int, lately.without::int
